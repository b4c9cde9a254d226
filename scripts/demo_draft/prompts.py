"""Prompts to train the demo's draft on: public training sets, sentences made here, and what the target itself asks.

    prompts.py starters STARTERS.jsonl
    python -m outrider.distill.main --only collect --config starters.yaml --prompts STARTERS.jsonl ...
    prompts.py given GIVEN.jsonl --gsm8k gsm8k_train.jsonl.gz --mbpp mbpp.jsonl
    prompts.py prompts PROMPTS.jsonl --target DIRECTORY --gsm8k gsm8k_train.jsonl.gz --mbpp mbpp.jsonl STARTED.jsonl ...

A starter is the beginning of a user's turn, or of a passage; the target goes on from it (Xu et al. 2024, Magpie). No
evaluation prompt is used: not Spec-Bench, MT-Bench, HumanEval or GSM8K's test questions.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from transformers import AutoTokenizer

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TURN = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
END = "<|im_end|>"

QUESTIONS = {
    "writing": [
        "Write a short story about",
        "Write an email to",
        "Write a blog post about",
        "Compose a poem about",
        "Draft a letter to",
        "Write a persuasive paragraph on",
        "Describe a vivid scene of",
        "Write a product review of",
        "Write the opening of a novel in which",
        "Write an announcement for",
        "Rewrite the following sentence so that",
    ],
    "roleplay": [
        "Act as a",
        "Pretend you are a",
        "Imagine you are a",
        "You are a travel guide in",
        "You are an interviewer.",
        "Take the role of a doctor and",
        "You are a teacher who explains",
        "Speak like a pirate and tell me",
    ],
    "reasoning": [
        "If all",
        "Suppose that",
        "A farmer has",
        "There are three boxes",
        "Which of the following",
        "Solve this riddle:",
        "Explain step by step why",
        "David has",
        "What is wrong with this argument:",
    ],
    "math": [
        "What is the area of",
        "Solve for x:",
        "Find the sum of",
        "A train travels",
        "How many ways can",
        "What is the probability that",
        "Given that f(x) =",
        "Simplify the expression",
        "The sum of two numbers is",
    ],
    "coding": [
        "Write a Python function that",
        "Write a Python program to",
        "Implement a function in",
        "Write a SQL query that",
        "Write a JavaScript function to",
        "Explain what this code does:",
        "Fix the bug in this code:",
        "How do I sort",
        "Write a C++ program",
        "Write a regular expression that",
        "Implement an algorithm to",
    ],
    "extraction": [
        "Extract all names from the following text:",
        "List the dates in the following paragraph:",
        "Given these reviews, rate each from 1 to 5:",
        "Identify the main topic of each sentence:",
        "Return the following data as JSON:",
        "Classify each of these items as",
        "Find the key figures in this report:",
    ],
    "stem": [
        "Explain the process of",
        "What is the difference between",
        "How does photosynthesis",
        "Describe how a",
        "What causes",
        "In physics, what is",
        "In chemistry, why does",
        "How do vaccines",
        "What are the stages of",
        "Explain how computers",
        "Describe the structure of",
        "Why do stars",
        "What is machine learning and how",
    ],
    "humanities": [
        "Discuss the causes of",
        "What was the significance of",
        "Compare the philosophies of",
        "How did the war",
        "Explain the role of religion in",
        "What are the main themes of",
        "Describe the economic effects of",
        "Who was the first emperor",
        "Analyse the impact of",
        "Explain how laws about",
    ],
    "qa": [
        "Who wrote",
        "Who played",
        "When did",
        "Where is",
        "What is the capital of",
        "Who is the author of",
        "When was the last time",
        "How many people",
        "What year did",
        "Who won the",
        "Where was the movie",
        "What does",
        "Who sings the song",
        "Which country has",
        "Where does the name",
        "Who invented",
    ],
    "chat": [
        "What are some tips for",
        "Can you help me",
        "How can I",
        "Give me three ideas for",
        "I want to learn",
        "Plan a trip to",
        "Recommend a recipe for",
        "List five",
        "What should I",
        "Tell me about",
        "How to",
        "Create a meal plan",
        "What are the benefits of",
        "Why is",
        "Suggest a name for",
    ],
}

PASSAGES = [
    "(News) -- The city council on Tuesday", "(News) -- Police said a man", "(News) -- The president of the country",
    "(News) -- Scientists have found", "(News) -- The football club announced", "(News) -- A new study shows",
    "(News) -- The company reported", "(News) -- Firefighters were called", "(News) -- The actress told reporters",
    "(News) -- Heavy rain in the south", "(News) -- The court decided on Friday", "(News) -- Voters in the state",
    "The history of the river begins", "The city lies on the coast of", "The film tells the story of",
    "The band was formed in", "The species is native to", "The treaty was signed by", "The university was founded in",
    "The novel was first published in", "The king ruled from", "The album was released on", "The bridge was built",
    "The series follows a group of", "The mountain is located in", "The law requires that", "The battle took place in",
]  # fmt: skip

ASK_FOR_SUMMARY = ["Summarize: {passage}", "Summarize the following text:\n{passage}", "{passage}\n\nSummarize this."]
ASK_ABOUT = [
    "{passage}\n\nBased on the text above, what is it about?",
    "{passage}\n\nUse the passage to answer: who or what is described, and where?",
    "Answer the question with the help of these passages.\n\n{passage}\n\n{other}\n\nQuestion: {question}",
    "{passage}\n{other}\n\n{question}",
]
SHORT_QUESTIONS = [
    "When did it happen?", "Who was involved?", "Where did this take place?", "What happened first?",
    "Why was it important?", "How many were there?", "What is the main idea?", "Which names are mentioned?",
]  # fmt: skip

GERMAN = (
    [
        "Die Regierung", "Der Bürgermeister von Hamburg", "Eine Sprecherin der Polizei", "Der Trainer", "Die Firma",
        "Das neue Gesetz", "Ein Gericht in München", "Die Opposition", "Der Präsident", "Viele Eltern",
        "Die Studentin", "Mein Nachbar", "Der Konzern", "Die Ärzte im Krankenhaus", "Eine Studie aus Wien",
    ],
    [
        "hat am Montag erklärt, dass", "sagte am Freitag, dass", "ist überzeugt, dass", "bestreitet, dass",
        "hofft darauf, dass", "kündigte an, dass", "warnte davor, dass", "konnte zeigen, dass",
    ],
    [
        "die Preise im nächsten Jahr steigen werden", "die Brücke im Herbst wieder geöffnet wird",
        "der Vertrag nicht verlängert wird", "mehr als zwanzig Menschen verletzt wurden",
        "die Wahl verschoben werden muss", "das Spiel trotz des Regens stattfindet",
        "die Kinder in der Schule Englisch lernen", "das Wasser in der Stadt wieder sauber ist",
        "niemand von dem Plan gewusst hat", "die Züge ab Mai schneller fahren",
        "der Flughafen geschlossen bleibt", "es zu wenige Wohnungen in den großen Städten gibt",
    ],
)  # fmt: skip
TRANSLATE = ["Translate German to English: {text}", "Translate the following sentence into English: {text}"]


def starters() -> Iterator[dict[str, str]]:
    """Beginnings for the target to go on from."""
    for category, beginnings in QUESTIONS.items():
        for beginning in beginnings:
            yield {"raw": TURN + beginning, "category": category}
        yield {"raw": TURN, "category": category}
    for passage in PASSAGES:
        yield {"raw": passage, "category": "passage"}


def given(arguments: argparse.Namespace, order: random.Random) -> Iterator[dict[str, str]]:
    """What the target did not write."""
    with gzip.open(arguments.gsm8k, "rt") as lines:
        for line in lines:
            yield {"prompt": json.loads(line)["question"], "category": "math_reasoning"}
    for line in arguments.mbpp.read_text().splitlines():
        yield {"prompt": json.loads(line)["text"], "category": "coding"}
    for parts in itertools.product(*GERMAN):
        text = " ".join(parts) + "."
        yield {"prompt": order.choice(TRANSLATE).format(text=text), "category": "translation"}


def prompts(arguments: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Everything to be answered."""
    order = random.Random(0)
    yield from given(arguments, order)
    questions, passages = split(arguments)
    yield from questions
    for passage, other in zip(passages, order.sample(passages, len(passages)), strict=True):
        yield {"prompt": order.choice(ASK_FOR_SUMMARY).format(passage=passage), "category": "summarization"}
        question = order.choice(SHORT_QUESTIONS)
        asked = order.choice(ASK_ABOUT).format(passage=passage, other=other, question=question)
        yield {"prompt": asked, "category": "rag"}


def split(arguments: argparse.Namespace) -> tuple[list[dict[str, str]], list[str]]:
    """What the target made of the starters: finished user turns, and passages."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    questions: dict[str, str] = {}
    passages: dict[str, None] = {}
    for path in arguments.started:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "answer" not in row:
                continue
            text = tokenizer.decode([*row["prompt"], *row["answer"]])
            if row["category"] == "passage":
                passages[text.replace("<|im_end|>", "").strip()] = None
            elif text.endswith(END):
                questions[text.removeprefix(TURN).removesuffix(END).strip()] = row["category"]
    return [{"prompt": text, "category": category} for text, category in questions.items() if text], list(passages)


def main() -> None:
    """Write one of the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["starters", "prompts", "given"])
    parser.add_argument("output", type=Path)
    parser.add_argument("started", type=Path, nargs="*")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--gsm8k", type=Path)
    parser.add_argument("--mbpp", type=Path)
    arguments = parser.parse_args()
    rows = list(
        starters()
        if arguments.what == "starters"
        else given(arguments, random.Random(0))
        if arguments.what == "given"
        else prompts(arguments)
    )
    arguments.output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} rows in {arguments.output}")


if __name__ == "__main__":
    main()
