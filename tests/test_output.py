import os
import sys

import pytest

from ddp_tutorial.output import Output


@pytest.fixture
def output(tmp_path):
    return Output(3, tmp_path / "out.txt")


def shown(output, content, capsys, final=False):
    with open(output.path, "ab") as file:
        file.write(content)
    output.show(final)
    return capsys.readouterr().out


def test_lines_appear_whole_and_once(output, capsys):
    assert shown(output, b"one\ntw", capsys) == "[rank 3] one\n"
    assert shown(output, b"o", capsys) == ""
    assert shown(output, b"\nthree", capsys) == "[rank 3] two\n"
    assert shown(output, b"", capsys, final=True) == "[rank 3] three\n"
    assert shown(output, b"", capsys, final=True) == ""


def test_a_rank_that_has_not_begun_shows_nothing(output, capsys):
    output.show(final=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\r 10%\r 50%\r100%\n", "100%"),
        (b"windows\r\n", "windows"),
        ("größer ≥ 1\n".encode(), "größer ≥ 1"),
        (b"not \xff text\n", r"not \xff text"),
        (b"\n", ""),
    ],
)
def test_what_a_terminal_would_show(content, line, output, capsys):
    assert shown(output, content, capsys) == f"[rank 3] {line}\n"


def test_a_character_cut_in_two_is_put_together(output, capsys):
    first, second = "é\n".encode()[:1], "é\n".encode()[1:]
    assert shown(output, first, capsys) == ""
    assert shown(output, second, capsys) == "[rank 3] é\n"


def test_the_last_lines_are_kept(output, capsys):
    shown(output, "".join(f"{number}\n" for number in range(50)).encode(), capsys)
    assert list(output.last) == [str(number) for number in range(40, 50)]


def test_everything_a_rank_writes_appears_with_its_rank(two, capsys):
    """Also what code in C, or a child process, writes past Python."""

    def write():
        rank = os.environ["RANK"]
        print(f"print {rank}")
        print("two\nlines", file=sys.stderr)
        os.write(1, b"past Python\n")
        os.system("echo child")
        print("no end", end="")

    two.run(write)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        mine = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"print {rank}", "two", "lines", "past Python", "child", "no end"]
    assert sum(line.startswith("[rank ") for line in lines) == 12
