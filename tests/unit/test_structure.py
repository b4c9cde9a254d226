"""What keeps the repository in shape: stubs, layering, light imports, file sizes, documents that tell the truth."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
STUBS = ROOT / "shared/outrider/v1"
SOURCES = sorted(
    path for folder in ("shared", "services") for path in (ROOT / folder).rglob("*.py") if path.parent != STUBS
)
HEAVY_PACKAGES = {"sampling", "engine", "distill", "profiling"}
MAX_LINES = 350
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_checked_in_stubs_are_what_the_protocol_generates(tmp_path: Path) -> None:
    done = run(ROOT / "scripts/proto.sh", tmp_path, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "outrider/v1").iterdir()}
    present = {path.name: path.read_bytes() for path in STUBS.glob("*_pb2*.py*") if path.suffix in (".py", ".pyi")}
    assert len(fresh) == 4 * len(list(ROOT.glob("proto/outrider/v1/*.proto")))
    assert present.keys() == fresh.keys(), "run `make proto`"
    assert [name for name, content in fresh.items() if present[name] != content] == [], "run `make proto`"


def test_the_layering_holds() -> None:
    done = run(BIN / "lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_every_package_is_in_the_contract_about_torch() -> None:
    """A package added later must not escape the rule by not being listed."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (sources,) = (contract["source_modules"] for contract in contracts if contract["name"].startswith("torch"))
    here = {path.stem for path in (ROOT / "shared/outrider").iterdir() if path.name[0] not in "_."}
    expected = {f"outrider.{name}" for name in here - HEAVY_PACKAGES - {"v1", "py"}}
    assert expected <= set(sources)


@pytest.mark.parametrize(
    "module", ["outrider.client", "outrider_cli.main", "outrider_cli.weights", "outrider_coordinator.main"]
)
def test_the_light_half_needs_neither_torch_nor_transformers(module: str) -> None:
    code = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ImportError(f"{{name}} is not for this process")
sys.meta_path.insert(0, Refuse())
importlib.import_module({module!r})
assert not {{"torch", "transformers"}} & sys.modules.keys()
"""
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


UNSAFE = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "yaml.load", "yaml.unsafe_load", "torch.jit.load"}


def unsafe(source: str) -> list[str]:
    """What in a file could run code that comes in as data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if name.name.partition(".")[0] in UNSAFE]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNSAFE:
                found.append(module)
            case ast.Call(func=func, keywords=keywords):
                name = ast.unparse(func)
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                plain_load = name == "torch.load" and given.get("weights_only") != "True"
                pickled = given.get("allow_pickle") == "True" or given.get("shell") == "True"
                if name in UNSAFE_CALLS or plain_load or pickled or given.get("trust_remote_code") == "True":
                    found.append(name)
    return found


def test_nothing_that_comes_in_as_data_is_run() -> None:
    """No pickle in any form, no eval, no shell; remote code only where a setting says so."""
    found = {str(path.relative_to(ROOT)): unsafe(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "numpy.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "load(name, trust_remote_code=True)",
        "yaml.load(text)",
    ],
)
def test_the_check_of_unsafe_code_finds_it(code: str) -> None:
    assert unsafe(code)
    assert not unsafe("torch.load(path, weights_only=True); model.eval(); re.compile(text)")


def test_no_file_is_too_long_to_hold_one_thing() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_what_exists(document: Path) -> None:
    """`function()`, `Class.method()`, `path/to/file.py` and `outrider.module.name` in backticks must be real."""
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names = re.findall(r"`([^`\n]+)`", prose)
    assert [name for name in names if not exists(name, document.parent)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_link_only_to_what_exists(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text(encoding="utf-8"))
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("accept()", True),
        ("Tokenizer.from_files(files)", True),
        ("no_such_function()", False),
        ("shared/outrider/errors.py", True),
        ("acceptance/tree.py", True),
        ("shared/outrider/no_such_file.py", False),
        ("outrider.text.Tokenizer.decode", True),
        ("outrider.text.Tokenizer.push", False),
        ("outrider.acceptance.params.SamplingParams.min_p", True),
        ("outrider.acceptance.accept.accept", True),
        ("outrider_coordinator.no_such_module", False),
        ("outrider.text.detokenizer.no_such_name", False),
        ("pip install", True),
        ("argmax(log p + G)", True),
    ],
)
def test_the_check_of_documents_tells_real_names_from_others(name: str, real: bool) -> None:
    assert exists(name, ROOT) is real


def exists(name: str, folder: Path) -> bool:
    """False if `name` looks like something of the repository that is not there; commands and values pass."""
    if re.fullmatch(r"[\w.]+\((\w+(, \w+)*)?\)", name):
        return name.partition("(")[0].split(".")[-1] in definitions()
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)+\.(py|proto|sh|md|toml|ya?ml|txt)", name):
        return any((base / name).exists() for base in (ROOT, folder, *ROOT.glob("shared/outrider"), ROOT / "services"))
    if re.fullmatch(r"outrider(_\w+)?(\.\w+)+", name) and not name.startswith("outrider.v1"):
        return resolves(name)
    return True


@cache
def definitions() -> set[str]:
    """The names of every function, method and class in the sources."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES)
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)}


def resolves(name: str) -> bool:
    """True for a package or module, for what is bound in it, and for a member of a class in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for base in (ROOT / "shared", ROOT / "services"):
            place = base.joinpath(*parts[:length])
            if (file := place.with_suffix(".py")).is_file() or (file := place / "__init__.py").is_file():
                return binds(ast.parse(file.read_text(encoding="utf-8")), parts[length:])
    return False


def binds(scope: ast.AST, path: list[str]) -> bool:
    """True if `path` leads from a module or class to something that its own text defines or imports."""
    if not path:
        return True
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name == path[0]:
                    return binds(node, path[1:])
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if [name] == path:
                    return True
            case ast.ImportFrom(module=str(module), names=names):
                if path[0] in [alias.asname or alias.name for alias in names]:
                    return resolves(".".join([module, *path]))
    return False
