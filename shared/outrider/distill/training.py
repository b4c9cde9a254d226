"""The training loop: the draft learns the target's distribution over its own vocabulary.

Loss at a position: kl_weight * KL(p || q) + ce_weight * -log q(answer's token), where p is the target's distribution at
temperature 1, cut to the draft's vocabulary (Hinton et al. 2015; DistillSpec, Zhou et al. 2024, on-policy data).
Positions whose true token the draft cannot say are left out: it is wrong there whatever it learns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from outrider.distill.batches import Batch, batches
from outrider.distill.options import TrainingOptions
from outrider.distill.teacher import Teacher, final_states
from outrider.engine.draft_vocabulary import DraftVocabulary
from outrider.errors import InvalidArgument

CHECKPOINT = "training.pt"
CHUNK = 8192
"""Positions whose logits are held at a time."""

Progress = Callable[[int, int, float], None]
"""Told after each step: its number, how many there will be, the loss."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Means over the weighted positions of one batch."""

    total: Tensor
    kl: float
    ce: float


class Trainer:
    """Trains `student` towards the teacher's target; both are on one device, the student's weights in float32."""

    def __init__(
        self,
        teacher: Teacher,
        student: PreTrainedModel,
        vocabulary: DraftVocabulary | None,
        options: TrainingOptions,
        directory: Path,
    ) -> None:
        """Checkpoints go to `directory`."""
        self.teacher, self._student, self._options = teacher, student, options
        self._path = directory / CHECKPOINT
        self._device = teacher.device
        size = teacher.head.shape[0]
        everything = DraftVocabulary(tuple(range(size)), size)
        trimmed = vocabulary or everything
        self._row_of = trimmed.row_of(self._device)
        self._known_rows = len(trimmed)
        kept = torch.tensor(trimmed.token_ids, device=self._device)
        self._target_head = teacher.head[kept]
        matrices = [p for p in student.parameters() if p.dim() > 1]
        vectors = [p for p in student.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95))
        self.step = 0
        self.seconds = 0.0  # spent on training, in earlier runs too
        self.history: list[dict[str, float]] = []

    def run(self, progress: Progress) -> None:
        """Train to the last step, from the newest checkpoint if there is one. Raises OSError when the disk is full."""
        self._restore()
        options, texts = self._options, self.teacher.texts
        stream = batches(texts.lengths, options.tokens_per_step, options.seed, skip=self.step)
        begun = time.monotonic() - self.seconds
        while self.progress < 1.0:
            losses = self.learn(texts.batch(next(stream)))
            self.seconds = time.monotonic() - begun
            if self.step % 10 == 0 or self.progress >= 1.0:
                self.history.append({"step": self.step, "kl": losses.kl, "ce": losses.ce})
            progress(self.step, options.steps, losses.kl)
            if self.step % options.checkpoint_every == 0:
                self._save()
        self._student.eval()
        self._save()

    def learn(self, batch: Batch) -> Losses:
        """One step; the batch is of the teacher's texts."""
        self._student.train()
        rate = self._options.learning_rate * _share_of_peak(self.step, self._options.warmup, self.progress)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        losses = self.losses(batch)
        losses.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._student.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses

    @property
    def progress(self) -> float:
        """The part of the training that is done, by steps or by time, whichever is further."""
        by_steps = self.step / self._options.steps
        return max(by_steps, self.seconds / (60 * self._options.minutes)) if self._options.minutes else by_steps

    def losses(self, batch: Batch) -> Losses:
        """The loss of one batch; position i is judged by token i + 1."""
        where, wanted, weights = self._positions(batch)
        with self._autocast():
            hidden = final_states(self._student, self._row_of[batch.tokens]).flatten(0, 1).index_select(0, where)
        taught = self.teacher.states(batch, where)
        kl = ce = torch.zeros((), device=self._device)
        for start in range(0, len(wanted), CHUNK):
            part = slice(start, start + CHUNK)
            kl_each, ce_each = self._each(hidden[part], taught[part], wanted[part])
            kl = kl + (kl_each * weights[part]).sum()
            ce = ce + (ce_each * weights[part]).sum()
        count = weights.sum().clamp(min=1e-6)
        total = (self._options.kl_weight * kl + self._options.ce_weight * ce) / count
        return Losses(total, float(kl.detach() / count), float(ce.detach() / count))

    def _positions(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the S * L positions count [P], the row of the token each should give, and its weight."""
        rows = self._row_of[batch.tokens].roll(-1, dims=1)
        weight = torch.where(batch.in_answer, 1.0, self._options.prompt_weight).roll(-1, dims=1)
        counts = batch.attention.roll(-1, dims=1) & (rows < self._known_rows) & (weight > 0)
        counts[:, -1] = False  # nothing follows
        where = counts.flatten().nonzero().squeeze(1)
        return where, rows.flatten()[where], weight.flatten()[where]

    def _each(self, hidden: Tensor, taught: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """KL and cross-entropy [P] of positions with final hidden states [P, hidden] of the draft and the target."""
        with self._autocast():
            logits = functional.linear(hidden, self._student.get_output_embeddings().weight[: self._known_rows])
            with torch.no_grad():
                target_logits = functional.linear(taught, self._target_head)
        log_q = logits.float().log_softmax(dim=-1)
        with torch.no_grad():
            log_p = target_logits.float().log_softmax(dim=-1)
        kl = functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=-1)
        return kl, -log_q.gather(1, wanted[:, None]).squeeze(1)

    def _autocast(self) -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16) if self._device.type == "cuda" else nullcontext()

    def _save(self) -> None:
        state = {
            "step": self.step,
            "history": self.history,
            "student": self._student.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "seconds": self.seconds,
            "options": self._options.model_dump(),
        }
        partial = self._path.with_suffix(".partial")
        try:
            torch.save(state, partial)
        except RuntimeError as error:  # what torch's writer raises for a full disk
            partial.unlink(missing_ok=True)
            raise OSError(f"cannot write the checkpoint {self._path}: {error}") from error
        partial.replace(self._path)

    def _restore(self) -> None:
        if not self._path.exists():
            return
        state = torch.load(self._path, map_location=self._device, weights_only=True)
        if state["options"] != self._options.model_dump():
            raise InvalidArgument(
                "training",
                self._options.model_dump(),
                f"what the checkpoint {self._path} was made with, or another --out",
            )
        self._student.load_state_dict(state["student"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.history = state["step"], state["seconds"], state["history"]


def _share_of_peak(step: int, warmup: int, progress: float) -> float:
    """Linear warm-up, then half a cosine down to nothing."""
    return min(1.0, (step + 1) / max(1, warmup)) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
