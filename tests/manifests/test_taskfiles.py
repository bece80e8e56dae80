"""Makefiles, scripts of Windows and their kind: variables hold what the tool itself gives them, or nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.manifests.find import read_file


def flags(folder: Path, name: str, text: str, **outside: str) -> list[str]:
    """The words of every launch behind the model, unknown ones as a question mark."""
    (folder / name).write_text(text, encoding="utf-8")
    contents = read_file(str(folder / name), outside)
    assert contents.troubles == ()
    return [" ".join("?" if word.why else str(word) for word in d.words[1:]) for d in contents.deployments]


SERVE = "\tvllm serve org/m --max-num-seqs"
MAKEFILES = {
    "appended": ("A = --x 1\nA += --y 2\ns:\n\tvllm serve org/m $(A)\n", ["--x 1 --y 2"]),
    "default of what is set": (f"N = 4\nN ?= 9\ns:\n{SERVE} $(N)\n", ["--max-num-seqs 4"]),
    "condition": (f"N = 4\nifeq ($(X),1)\n  N = 9\nelse\nN = 8\nendif\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
    "set behind a condition": (f"ifdef X\nN = 9\nendif\nN = 5\ns:\n{SERVE} $(N)\n", ["--max-num-seqs 5"]),
    "of a target": (f"N = 4\nbig: N = 9\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
    "comment": (f"N = 4 # ranks\ns:\n{SERVE} $(N)\n", ["--max-num-seqs 4"]),
    "lines are shells": (f"s:\n\tN=5\n{SERVE} $$N\n", ["--max-num-seqs ?"]),
    "one line": ("s:\n\tN=5; \\\n\tvllm serve org/m --max-num-seqs $$N\n", ["--max-num-seqs 5"]),
    "ends of lines": (f"N = 4\r\ns:\r\n{SERVE} $(N) \\\r\n\t  --x 1\r\n", ["--max-num-seqs 4 --x 1"]),
    "one shell": (f".ONESHELL:\ns:\n\tN=5\n{SERVE} $$N\n", ["--max-num-seqs 5"]),
    "not exported": (f"N = 4\ns:\n{SERVE} $$N\n", ["--max-num-seqs ?"]),
    "exported": (f"export N = 4\ns:\n{SERVE} $$N\n", ["--max-num-seqs 4"]),
    "exported later": (f"N = 4\nexport N\ns:\n{SERVE} $${{N}}\n", ["--max-num-seqs 4"]),
    "expanded late": (f"B = 1\nA = $(B)\nB = 2\ns:\n{SERVE} $(A)\n", ["--max-num-seqs 2"]),
    "expanded at once": (f"B = 1\nA := $(B)\nB = 2\ns:\n{SERVE} $(A)\n", ["--max-num-seqs 1"]),
    "not known at once": (f"A := $(B)\nB = 2\ns:\n{SERVE} $(A)\n", ["--max-num-seqs ?"]),
    "shell's own": ("N = 4\ns:\n\tN=9; vllm serve org/m --max-num-seqs $(N) --x $$N\n", ["--max-num-seqs 4 --x 9"]),
    "quotes are the shell's": ("A = --x '{\"a\": 1}'\ns:\n\tvllm serve org/m $(A)\n", ['--x {"a": 1}']),
    "in quotes": ("N = 4\ns:\n\tbash -c 'vllm serve org/m --max-num-seqs $(N)'\n", ["--max-num-seqs 4"]),
    "command": (f"N = 4\nN != nproc\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
    "define": (f"N = 4\ndefine N\n9\nendef\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
    "of itself": (f"N = $(N)\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
    "function": (f"N = $(shell nproc)\ns:\n{SERVE} $(N)\n", ["--max-num-seqs ?"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MAKEFILES.values(), ids=MAKEFILES)
def test_a_makefile_is_read_as_make_does(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "Makefile", text) == expected


def test_what_nobody_sets_in_a_makefile_is_given_by_name(tmp_path: Path) -> None:
    text = f"N ?= 4\ns:\n{SERVE} $(N) --x $(Y)\n"
    assert flags(tmp_path, "Makefile", text) == ["--max-num-seqs 4 --x ?"]
    assert flags(tmp_path, "Makefile", text, N="8", Y="2") == ["--max-num-seqs 8 --x 2"]


RUN = "vllm serve org/m --max-num-seqs"
BATCHES = {
    "from its line on": (f"set N=4\n{RUN} %N%\nset N=9\n{RUN} %N%\n", ["--max-num-seqs 4", "--max-num-seqs 9"]),
    "case": (f'SET "Len=4"\n{RUN} %LEN%\n', ["--max-num-seqs 4"]),
    "condition": (f'set N=4\nif "%X%"=="1" set N=9\n{RUN} %N%\n', ["--max-num-seqs ?"]),
    "block": (f"set N=4\nif exist x (\n  set N=9\n) else (\n  set M=1\n)\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "behind a block": (f"if exist x (\n  rem x\n)\nset N=9\n{RUN} %N%\n", ["--max-num-seqs 9"]),
    "launch in a block": (f"if exist x ({RUN} 4) else {RUN} 8\n", ["--max-num-seqs 4", "--max-num-seqs 8"]),
    "jump": (f"set N=4\ngoto run\nset N=9\n:run\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "loop": (f"for %%i in (4 8) do {RUN} %%i\n", ["--max-num-seqs ?"]),
    "late": (f"set N=4\n{RUN} !N!\n", ["--max-num-seqs ?"]),
    "changed": (f"set N=4\n{RUN} %N:4=7%\n", ["--max-num-seqs ?"]),
    "calculated": (f"set N=4\nset /a N=N+1\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "argument": (f"{RUN} %1\n", ["--max-num-seqs ?"]),
    "environment": (f'set N=4\nbash -c "{RUN} $N"\n', ["--max-num-seqs 4"]),
    "odd condition": (f"set N=4\nif (x) set N=9\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "scope": (f"setlocal\nset N=4\nendlocal\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "marks": ("vllm serve C:\\m\\x --a it's \"b c\" ^\n  --d 1 & echo done\n", ["--a it's b c --d 1"]),
    "default": (
        f'if not defined N set "N=4"\nif "%M%"=="" (\n  set M=8\n)\n{RUN} %N% --x %M%\n',
        ["--max-num-seqs 4 --x 8"],
    ),
    "condition that is known": (
        f'set M=1\nset N=4\nif "%M%"=="1" set N=9\nif not "%M%"=="1" set N=8\n{RUN} %N%\n',
        ["--max-num-seqs 9"],
    ),
    "alternative to a known condition": (
        f'set M=1\nset N=4\nif "%M%"=="0" (set N=9) else set N=8\n{RUN} %N%\n',
        ["--max-num-seqs ?"],
    ),
    "value before a default": (f"set N=9\nif not defined N set N=4\n{RUN} %N%\n", ["--max-num-seqs 9"]),
    "default of a default": (f"if not defined N if exist x set N=4\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "other variable": (f"set N=9\nif not defined M set N=4\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "default by a list": (f"if not defined N dir x && set N=4\n{RUN} %N%\n", ["--max-num-seqs ?"]),
    "quotes in quotes": (
        '''vllm serve m --spec "{""method"":""mtp"",""n"":3}" --d ""\n''',
        ['''--spec {"method":"mtp","n":3} --d '''],
    ),
    "start": (f'start "a title" /b {RUN} 4\n', ["--max-num-seqs 4"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BATCHES.values(), ids=BATCHES)
def test_a_batch_file_is_read_line_by_line(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "a.cmd", text.replace("\n", "\r\n")) == expected


POWERSHELLS = {
    "from its line on": (f"$n = 4\n{RUN} $N\n$n = 9\n{RUN} $n\n", ["--max-num-seqs 4", "--max-num-seqs 9"]),
    "condition": (f"$n = 4\nif ($x) {{ $n = 9 }}\n{RUN} $n\n", ["--max-num-seqs ?"]),
    "joined path": (
        'param([string]$Dir = "D:\\l")\n$s = Join-Path $Dir "llama-server.exe"\n$m = Join-Path $env:HOME \'a.gguf\'\n'
        "Start-Process -FilePath $s -ArgumentList @('-m', $m, '-c', '8') -NoNewWindow\n",
        ["? -c 8"],
    ),
    "calculated": (f"$n = 4\n$n += 1\n{RUN} $n\n", ["--max-num-seqs ?"]),
    "counted": (f"$n = 4\n$n++\n{RUN} $n\n", ["--max-num-seqs ?"]),
    "loop": (f"foreach ($n in 4, 8) {{\n  {RUN} $n\n}}\n", ["--max-num-seqs ?"]),
    "array": ("$a = @('--x', '1'\n  '--y', 2)\nvllm serve org/m @a\nvllm serve org/m $a\n", ["--x 1 --y 2"] * 2),
    "array added to": ("$a = '--x', 1\n$a += '--y'\nvllm serve org/m @A\n", ["--x 1 --y"]),
    "array perhaps added to": ("$a = '--x', 1\nif ($y) { $a += '--y' }\nvllm serve org/m @a\n", ["--x 1 ?"]),
    "splat of what is not known": ("vllm serve org/m @a --y 1\n", ["? --y 1"]),
    "a text is one word": ("$a = '--x 1'\nvllm serve org/m $a\n", ["--x 1"]),
    "no environment": (f"$N = 4\nbash -c '{RUN} $N'\n", ["--max-num-seqs ?"]),
    "environment": (f"$env:N = '4'\nbash -c '{RUN} $N'\n{RUN} $env:n\n", ["--max-num-seqs 4"] * 2),
    "expression": (f"{RUN} $(Get-Count -x (1))\n{RUN} $a.n\n{RUN} (1 + 2)\n", ["--max-num-seqs ?"] * 3),
    "in a text": ('$n = 4\nvllm serve org/m --x "a$($n)b" --y=$n # $n\n', ["--x a4b --y=4"]),
    "default of a parameter": (f"param(\n  [int]$N = 4\n)\n{RUN} $N\n", ["--max-num-seqs 4"]),
    "start": (
        "Start-Process -FilePath vllm -ArgumentList \"serve org/m --x 4\" -NoNewWindow\n"
        "Start-Process vllm -ArgumentList 'serve', 'org/m', '--x', '4'\n"
        "Start-Process vllm -ArgumentList @('serve', 'org/m', '--x 4')\n",
        ["--x 4"] * 3,
    ),
    "started with an array": (
        "$a = 'serve', 'org/m', '--x', '4'\n$p = Start-Process vllm -ArgumentList $a -PassThru\n", ["--x 4"],
    ),
    "kept": ("$p = vllm serve org/m --x 4\n", ["--x 4"]),
    "called": ("& 'vllm' serve org/m `\n  --x 'it' | Tee-Object log\n", ["--x it"]),
    "several at once": (f"$n = 4\n$m, $n = 1, 2\n{RUN} $n\n", ["--max-num-seqs ?"]),
    "quotes in quotes": ("""vllm serve org/m --x "{""a"": 1}" --y 'it''s'\n""", ["--x {\"a\": 1} --y it's"]),
    "hash table": ("$a = @{ x = 1; n = 4 }\nvllm serve org/m @a --y 1\n", ["? --y 1"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), POWERSHELLS.values(), ids=POWERSHELLS)
def test_a_script_of_powershell_is_read_statement_by_statement(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "a.ps1", text) == expected


def test_a_process_whose_arguments_nobody_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.ps1").write_text("# it\nStart-Process vllm -ArgumentList $a\n", encoding="utf-8")
    (trouble,) = read_file(str(tmp_path / "a.ps1"), {}).troubles
    assert (trouble.line, trouble.message) == (2, "the arguments of Start-Process are not known")


PROGRAM = "[program:v]\ncommand=/v/vllm serve org/m --max-num-seqs %(ENV_N)s\n"
PROGRAMS = {
    "its own": (f"[program:w]\nenvironment=N=9\n{PROGRAM}environment=A='x',\n  N=4\n", ["--max-num-seqs 4"]),
    "of another": (f"{PROGRAM}[program:w]\nenvironment=N=9\n", ["--max-num-seqs ?"]),
    "of all": (f"{PROGRAM}[supervisord]\nenvironment=N=\"4\"\n", ["--max-num-seqs 4"]),
    "comment": ("[program:v]\ncommand=vllm serve org/m ; it's\n; x\n  --x 4 # y\n", ["--x 4"]),
    "no shell": (
        "[program:v]\nenvironment=N=4\ncommand=vllm serve org/m --x $N\n"
        "[program:w]\nenvironment=N=4\ncommand=bash -c 'vllm serve org/m --x $N'\n"
        "[program:x]\nenvironment=N=4\ncommand=bash -c \"vllm serve org/m --x $N\"\n",
        ["--x $N", "--x 4", "--x 4"],
    ),
    "brackets": (f"{PROGRAM}  --x '[1]'\n  --y 2\nenvironment=N=4\n", ["--max-num-seqs 4 --x [1] --y 2"]),
    "number of a process": ("[program:v]\ncommand=vllm serve org/m --x 1%(process_num)02d\n", ["--x ?"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_of_supervisord_has_an_environment_of_its_own(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "supervisord.conf", text) == expected


def test_variables_behind_too_many_say_so(tmp_path: Path) -> None:
    many = "".join(f"a{number} := '1'\n" for number in range(2_000))
    (tmp_path / "justfile").write_text(f"{many}n := '4'\ns:\n    vllm serve org/m --x {{{{n}}}}\n", encoding="utf-8")
    (deployment,) = read_file(str(tmp_path / "justfile"), {}).deployments
    assert "more than 2,000 variables" in deployment.words[-1].why


LIST = 'c = ["vllm", "serve", "org/m", "--x", "4"]\n'
MAPPING = 'from vllm import LLM\nk = {"max_num_seqs": 4}\n'
PARSER = 'p.add_argument("-x", "--max-len", type=int, default=4)\n'
RUN = 'run(["vllm", "serve", "org/m", "--x", %s])\n'
CLASS = "@dataclass\nclass Config:\n    size: int = 4\n    more: int = Field(7, ge=1)\n    root: str = None\n"
FIELDS = {
    "argument": (f"{PARSER}a = p.parse_args()\n" + RUN % "str(a.max_len)", ["--x 4"]),
    "argument handed on": (PARSER + "def f(a): " + RUN % 'f"{a.max_len}"' + "a = p.parse_args()\nf(a)\n", ["--x 4"]),
    "argument by another name": (
        "p.add_argument('--y', dest='z', default='4')\na = p.parse_args()\n" + RUN % "a.z", ["--x 4"],
    ),
    "argument that somebody gives": (
        "p.add_argument('--max-len', required=True, default=4)\na = p.parse_args()\n" + RUN % "str(a.max_len)",
        ["--x ?"],
    ),
    "argument of two parsers": (f"{PARSER}{PARSER}a = p.parse_args()\n" + RUN % "str(a.max_len)", ["--x ?"]),
    "argument that is set": (
        f"{PARSER}a = p.parse_args()\na.max_len = f()\n" + RUN % "str(a.max_len)", ["--x ?"],
    ),
    "argument with another default": (
        f"{PARSER}p.set_defaults(max_len=9)\na = p.parse_args()\n" + RUN % "str(a.max_len)", ["--x ?"],
    ),
    "no argument": (f"{PARSER}a = f()\n" + RUN % "str(a.max_len)", ["--x ?"]),
    "switches": (
        "from vllm import LLM\np.add_argument('--eager', action='store_true')\n"
        "p.add_argument('--cached', action='store_false')\na = p.parse_args()\n"
        "LLM('org/m', enforce_eager=a.eager, enable_prefix_caching=a.cached)\n",
        ["org/m --no-enforce-eager --enable-prefix-caching"],
    ),
    "either": (f"{PARSER}a = p.parse_args()\n" + RUN % "str(None or a.max_len)", ["--x 4"]),
    "class": (CLASS + RUN % "str(Config.size)", ["--x 4"]),
    "settings": (f"{CLASS}c = Config()\n" + RUN % "str(c.more)", ["--x 7"]),
    "settings that are given": (f"{CLASS}c = Config(size=9)\n" + RUN % "str(c.size)", ["--x 9"]),
    "settings that a function makes": (f"{CLASS}c = use(Config)\n" + RUN % "str(c.size)", ["--x 4"]),
    "settings from elsewhere": (f"{CLASS}c = Config(**x)\n" + RUN % "str(c.size)", ["--x ?"]),
    "own": (f"{CLASS}    def f(self): {RUN % 'str(self.size)'}", ["--x 4"]),
    "own that a method sets": (
        f"{CLASS}    def g(self): self.n = 9; self.size = 5\n    def f(self):\n        {RUN % 'str(self.n)'}"
        f"        {RUN % 'str(self.size)'}",
        ["--x 9", "--x ?"],
    ),
    "path": (RUN % 'os.path.join(os.path.expanduser("~/a"), "b"), str(Path("/a") / "b")', ["--x ~/a/b /a/b"]),
    "number": (RUN % 'str(float(os.environ.get("F", "0.8")))', ["--x 0.8"]),
    "mapping of which one value is not known": (
        'from vllm import LLM\nk = {"model": f(), "max_num_seqs": 4}\nLLM(**k)\n', ["? --max-num-seqs 4"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FIELDS.values(), ids=FIELDS)
def test_python_that_holds_values_in_arguments_and_settings(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "a.py", text) == expected


PYTHONS = {
    "item": (f'{LIST}c[-1] = "9"\n', ["--x 9"]),
    "item of nobody knows which": (f"{LIST}c[i] = '9'\n", ["--x ? ?"]),
    "item in a condition": (f"{LIST}if y: c[-1] = '9'\n", ["--x ? ?"]),
    "item deleted": (f"{LIST}del c[-2:]\n", ["--x ? ?"]),
    "inserted": (f"{LIST}c.insert(3, '--y')\n", ["--x ? ?"]),
    "appended": (f"{LIST}c.append('--y')\nc.extend(['--z', '1'])\n", ["--x 4 --y --z 1"]),
    "appended by a function": (f"{LIST}def f(): c.append('--y')\n", ["--x 4 ?"]),
    "key": (f'{MAPPING}k["max_num_seqs"] = 9\nLLM("org/m", **k)\n', ["org/m --max-num-seqs 9"]),
    "key later": (f'{MAPPING}LLM("org/m", **k)\nk["max_num_seqs"] = 9\n', ["org/m --max-num-seqs 4"]),
    "key in a condition": (f'{MAPPING}if x: k["max_num_seqs"] = 9\nLLM("org/m", **k)\n', ["org/m ?"]),
    "updated": (f'{MAPPING}k.update(max_num_seqs=9)\nLLM("org/m", **k)\n', ["org/m --max-num-seqs 9"]),
    "updated with what is not known": (f'{MAPPING}k.update(x)\nLLM("org/m", **k)\n', ["org/m ?"]),
    "key deleted": (f'{MAPPING}del k["max_num_seqs"]\nLLM("org/m", **k)\n', ["org/m ?"]),
    "key added to": (f'{MAPPING}k["max_num_seqs"] += 1\nLLM("org/m", **k)\n', ["org/m ?"]),
    "another name": (f"{LIST}d = c\nd[-1] = '9'\n", ["--x ? ?"]),
    "several at once": ("N = 4\nN, M = 5, 6\nc = ['vllm', 'serve', 'org/m', '--x', str(N)]\n", ["--x ?"]),
    "with": ("N = 4\nwith f() as N:\n    c = ['vllm', 'serve', 'org/m', '--x', str(N)]\n", ["--x ?"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PYTHONS.values(), ids=PYTHONS)
def test_python_that_changes_a_list_or_a_mapping(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert flags(tmp_path, "a.py", text) == expected
