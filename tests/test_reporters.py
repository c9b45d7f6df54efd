"""Every leaderboard format shows what the board holds: within the width, escaped, ranks and unranked rows with it."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from builders import record

from evalharness import Identity
from evalharness.axes import cost_table
from evalharness.board import Board
from evalharness.costs import summarise_costs
from evalharness.headline import Facts
from evalharness.leaderboard import board_from_records, make_board

FORMATS = ("table", "markdown", "html", "latex", "csv", "json")
SCRIPT, MIXED = "<script>alert(1)</script>", 'ünï & "x"'
ODD = "a_b&c%d#e|f"
TASK = "data: {dataset: toy, target: label}\nevaluators: {centroid: {use: centroid}}\ngroups: [colour]\nmain: centroid.accuracy\n"


def failed(encoder, reason, **fields):
    return record(encoder, None, status="failed", reason=reason, **fields)


class Ranking:
    """Rank sets that a test makes up; nothing is ranked where there are none."""

    def __init__(self, sets, means=None):
        self._sets, self._means = sets, means or {}

    def sets(self, task):
        return self._sets

    def suite(self, tasks):
        return self._sets, self._means

    def reasons(self):
        return {}


def make(records, ranks=None, means=None, **fields):
    facts = Facts(modalities={"t": "image", "u": "image"}, rank=None if ranks is None else lambda by_task: Ranking(ranks, means), **fields)
    return board_from_records(records, facts)


def wide_board():
    """Return a board whose seven columns do not fit 80 columns, with a row that is not ranked."""
    names = ("random-projection?dim=8", "pixels", "identity")
    records = [record(name, 0.8 - 0.1 * at, task=task) for task in ("t", "u") for at, name in enumerate(names)]
    records += [
        record(name, 0.4, task=task, statistic="worst", over=f"group:{group}", group=f"{group}=a-long-name", high=None, main=False)
        for task in ("t", "u")
        for group in ("background", "camera")
        for name in names
    ]
    records += [
        failed("broken", "a reason that is longer than a line of eighty columns, so that the note below the table has to be wrapped")
    ]
    ranks = {name: (at + 1, min(at + 2, 3)) for at, name in enumerate(names)}
    return make(records, ranks, {name: (0.8 - 0.1 * at, 0.5, 0.9) for at, name in enumerate(names)})


@pytest.fixture
def render(registry):
    def call(board, style):
        return registry.get("reporter", style).render(board)

    return call


# --- plain text ---------------------------------------------------------------------------------------------------


def blocks(text):
    """Return the lines of each block of a table: headings, rule and rows."""
    parts = [part.splitlines() for part in text.split("\n\n")]
    held = [[line for line in part if not line.startswith("  ")] for part in parts]
    return [part for part in held if any(re.fullmatch(r"[- ]+", line) for line in part)]


@pytest.mark.parametrize("width", [80, 160])
def test_a_table_fits_its_width_and_every_block_has_rank_and_encoder(width, render, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    text = render(wide_board(), "table")

    assert max(map(len, text.splitlines())) <= width
    assert blocks(text)
    for block in blocks(text):
        at = next(place for place, line in enumerate(block) if re.fullmatch(r"[- ]+", line))
        assert block[0].split()[:2] == ["rank", "encoder"]
        assert [line.split()[:2] for line in block[at + 1 :]] == [
            ["1–2", "random-projection?dim=8"],
            ["2–3", "pixels"],
            ["3", "identity"],
            ["–", "broken"],
        ]


def test_no_column_is_lost_between_blocks(render, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    narrow = render(wide_board(), "table")
    monkeypatch.setenv("COLUMNS", "400")
    wide = render(wide_board(), "table")

    assert len(blocks(narrow)) > len(blocks(wide)) == 1
    assert sorted(re.findall(r"\S+: \.400 \(≥ \.300\)", narrow)) == sorted(re.findall(r"\S+: \.400 \(≥ \.300\)", wide))
    assert wide.count("(≥ .300)") == 3 * 3  # of four worst groups, three have room beside rank, encoder, mean and two tasks


def test_a_table_whose_headings_are_wider_than_its_values_fits_any_width(render, monkeypatch):
    board = make([record("pixels", 0.5, task=f"a-task-of-long-name-{at}", low=None, high=None) for at in range(4)])

    for width in range(60, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(len(line) for block in blocks(render(board, "table")) for line in block) <= width


def test_a_pipe_is_160_wide(render, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback: __import__("os").terminal_size(fallback))

    assert 80 < max(map(len, render(wide_board(), "table").splitlines())) <= 160


# --- html ---------------------------------------------------------------------------------------------------------

VOID = {"meta"}


class Page(HTMLParser):
    """Collect elements, texts and attributes, and check that tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.rows, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag == "tr":
            self.rows.append((dict(attrs), []))
        if tag in ("td", "th") and self.rows:
            self.rows[-1][1].append((dict(attrs), []))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.rows and self.rows[-1][1] and {"td", "th"} & set(self.open):
            self.rows[-1][1][-1][1].append(data)

    def cells(self, row):
        return ["".join(texts) for _, texts in self.rows[row][1]]


def test_html_is_one_balanced_page_that_loads_nothing(render):
    text = render(wide_board(), "html")
    page = Page(text)

    assert page.open == []
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?://|\bsrc\s*=|@import|url\(", text)
    assert not {name for _, name, _ in page.attributes} & {"src", "href", "srcset", "action", "onclick", "onload"}
    assert {"style", "script"} <= set(page.tags)
    assert not {"link", "img", "iframe", "object"} & set(page.tags)


def test_html_escapes_what_users_name(render):
    board = make(
        [
            record(SCRIPT, 0.9),
            record(MIXED, 0.8),
            record(MIXED, 0.3, statistic="worst", over="group:<b>", group='<b>=<i>"', high=None, main=False),
            failed("c", 'it said "<b>no</b>" & left'),
        ]
    )
    text = render(board, "html")
    page = Page(text)

    assert page.tags.count("script") == 1
    assert not {"b", "i"} & set(page.tags)
    assert [page.cells(row)[0] for row in range(1, 4)] == [SCRIPT, MIXED, "c"]
    assert page.cells(2)[2].startswith('<i>": .300')
    assert page.rows[3][0]["title"] == 't: it said "<b>no</b>" & left'
    assert 'c is not ranked: t: it said "<b>no</b>" & left' in page.texts


def test_html_rows_have_keys_to_sort_by_and_unranked_rows_are_marked(render):
    page = Page(render(wide_board(), "html"))
    rows = page.rows[1:]

    assert [row[1][0][0]["data-key"] for row in rows] == ["1", "2", "3", ""]
    assert [float(row[1][3][0]["data-key"]) for row in rows[:3]] == pytest.approx([0.8, 0.7, 0.6])
    assert rows[3][1][3][0]["data-key"] == ""
    assert ["unranked" in row[0].get("class", "") for row in rows] == [False, False, False, True]
    assert "a reason that is longer" in rows[3][0]["title"]
    assert page.tags.count("button") == len(page.rows[0][1])


def test_html_draws_a_bar_for_each_value_within_its_place(render):
    text = render(wide_board(), "html")
    places = [float(found) for found in re.findall(r'(?:x1|x2|cx)="([-\d.]+)"', text)]

    assert places
    assert all(0 <= place <= 120 for place in places)


# --- latex --------------------------------------------------------------------------------------------------------


def test_latex_escapes_and_has_as_many_columns_as_headings(render):
    board = make(
        [
            record(ODD, 0.9),
            record("b", 0.8, status="not_converged"),
            record(ODD, 0.3, statistic="worst", over="group:c_d", group="c_d=50%", high=None, main=False),
        ],
        {ODD: (1, 2)},
    )
    text = render(board, "latex")
    columns = len(re.search(r"\\begin\{tabular\}\{(l+)\}", text)[1])
    body = text.partition("\\toprule")[2].partition("\\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]

    assert r"a\_b\&c\%d\#e\textbar{}f" in text
    assert r"50\%: .300 ($\geq$ .200)" in text
    assert "1--2 & " in text
    assert columns == 4
    assert [len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines] == [columns] * len(lines)
    assert not re.search(r"(?<!\\)[#%_]", text)
    assert not set("≥≤–·×") & set(text)


def test_latex_braces_and_backslashes_are_text(render):
    text = render(make([record("a\\b{c}$~^")]), "latex")

    assert r"a\textbackslash{}b\{c\}\$\textasciitilde{}\textasciicircum{}" in text


# --- csv and json -------------------------------------------------------------------------------------------------


def test_csv_gives_every_score_back_with_its_rank_set(render):
    board = make(
        [record('a,"b"\n', 0.123456789), record("c", 0.5), record("d", None, status="failed", reason="x")], {'a,"b"\n': (1, 2), "c": (1, 2)}
    )
    rows = list(csv.DictReader(io.StringIO(render(board, "csv"))))

    assert [(row["encoder"], row["rank"], row["ranked"]) for row in rows] == [
        ("c", "1–2", "True"),
        ('a,"b"\n', "1–2", "True"),
        ("d", "", "False"),
    ]
    assert float(rows[1]["value"]) == 0.123456789
    assert (float(rows[1]["low"]), float(rows[1]["high"]), int(rows[1]["n"])) == pytest.approx((0.023456789, 0.223456789, 100))
    assert (rows[2]["value"], rows[2]["status"]) == ("", "failed")


def test_csv_has_the_rank_sets_of_tasks_and_of_the_mean(render):
    rows = list(csv.DictReader(io.StringIO(render(wide_board(), "csv"))))

    assert {(row["column"], row["rank"]) for row in rows if row["encoder"] == "pixels" and "/" not in row["column"]} == {
        ("mean", "2–3"),
        ("t", "2–3"),
        ("u", "2–3"),
    }


def test_json_gives_everything_back(render):
    def refuse(text):
        raise AssertionError(text)

    board = wide_board()
    (found,) = json.loads(render(board, "json"), parse_constant=refuse)
    (table,) = board.tables

    assert (found["title"], found["columns"], found["notes"]) == (table.title, table.columns, table.notes)
    assert [(row["encoder"], row["rank"], row["ranked"], row["reason"]) for row in found["rows"]] == [
        (row.encoder, None if row.rank is None else list(row.rank), row.ranked, row.reason) for row in table.rows
    ]
    for row, told in zip(table.rows, found["rows"], strict=True):
        assert set(told["scores"]) == set(row.scores)
        for key, score in row.scores.items():
            assert told["scores"][key] == {name: getattr(score, name) for name in told["scores"][key]}


# --- costs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", FORMATS)
def test_costs_render_in_every_format(style, render):
    line = {
        "encoder_identity": "source:a", "modality": "image", "device": "cpu", "dtype": "float32", "threads": 1, "memory_kind": "process-resident",
        "items": 10, "items_per_second": 1234.5, "dim": 8, "bytes_per_vector": 32, "peak_memory_bytes": 5_000_000, "reasons": {"parameters": "no <module> & no arrays"},
    }  # fmt: skip
    text = render(Board(tables=[cost_table(summarise_costs([{**line, "encoder": name} for name in (ODD, MIXED)]))]), style)

    if style == "json":
        (table,) = json.loads(text)
        assert table["rows"][0]["scores"]["items_per_second"]["value"] == 1234.5
        assert table["rows"][0]["scores"]["parameters"]["reason"] == "no <module> & no arrays"
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert {row["encoder"] for row in rows} == {f"{ODD} · image", f"{MIXED} · image"}
        assert next(row["value"] for row in rows if row["column"] == "parameters") == ""
    elif style == "html":
        page = Page(text)
        assert page.open == []
        assert [page.cells(row)[:2] for row in (1, 2)] == [[f"{ODD} · image", "1.2k"], [f"{MIXED} · image", "1.2k"]]
        assert page.rows[1][1][1][0]["data-key"] == "1234.5"
        assert page.rows[1][1][2][0] == {"data-key": "", "title": "n = 10; no <module> & no arrays"}
    else:
        assert "1.2k" in text
        assert "32 B" in text
        assert "5.0 MB" in text
    if style == "table":
        assert "no <module> & no arrays" in " ".join(text.split())


# --- encoders that lack tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", FORMATS)
def test_a_partial_mean_says_of_how_many_tasks_it_is_and_stays_unranked(style, render, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    records = [record("a", 0.6), record("a", 0.8, task="u"), record("b", 0.9)]
    (table,) = make(records, {"a": (1, 1)}, partial=True).tables
    (plain,) = make(records, {"a": (1, 1)}).tables
    text = render(Board(tables=[table]), style)

    assert [(row.encoder, row.ranked, row.rank) for row in table.rows] == [("a", True, (1, 1)), ("b", False, None)]
    assert table.rows[1].scores["mean"].text == ".900 over 1 of 2"
    assert "mean" not in plain.rows[1].scores
    assert plain.rows[0].scores["mean"].value == pytest.approx(0.7)
    assert "over 1 of 2" in text
    assert "over 1 of 2" not in render(Board(tables=[plain]), style)
    if style != "csv":
        assert "b is not ranked: not run: u" in text


def test_a_mean_is_over_one_metric_only(render):
    (table,) = make([record("a"), record("a", task="u", metric="spearman")]).tables

    assert "mean" not in table.columns
    assert "No mean over tasks: accuracy, spearman share no scale." in table.notes


# --- results of runs ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_folders(run_tasks, write_task, toys, tmp_path):
    """Return two folders with results of `counting`, which is another encoder in the second, newer one."""
    path = write_task(TASK)
    run_tasks(path, ["counting", "random-projection?dim=3", "bad-nan"], out=tmp_path / "first")
    spec = toys.get("encoder", "counting")

    def build(*, device, dtype, scale):
        encoder = spec.build(device=device, dtype=dtype, scale=scale)
        return type("Other", (), {"dim": 2, "encode": lambda self, batch, **options: encoder.encode(batch)[:, :2]})()

    toys._specs["encoder"]["counting"] = replace(spec, build=build, identity=lambda **_: Identity(kind="declared", digest="other"))
    run_tasks(path, ["counting"], out=tmp_path / "second")
    return tmp_path / "first", tmp_path / "second"


@pytest.mark.parametrize("style", FORMATS)
def test_a_conflict_of_two_folders_is_told_and_the_newest_shown(style, two_folders, render, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    board = make_board(list(two_folders))
    (table,) = board.tables
    values = {row.encoder: row.scores["toy-task"].value for row in table.rows}
    alone = [make_board([folder]).tables[0] for folder in two_folders]
    shown = {row.encoder: row.scores["toy-task"].value for row in alone[1].rows}
    (note,) = [each for each in table.notes if each.startswith("Conflict: ")]

    assert values["counting"] == shown["counting"] != alone[0].rows[0].scores["toy-task"].value
    assert re.fullmatch(
        rf"Conflict: counting on toy-task is \S+ in {two_folders[1]} and \S+ in {two_folders[0]} \(another encoder under the same name\); the newest is shown\.",
        note,
    )
    assert not [each for found in alone for each in found.notes if each.startswith("Conflict")]
    if style == "json":
        assert note in json.loads(render(board, style))[0]["notes"]
    elif style == "html":
        assert note in Page(render(board, style)).texts
    elif style != "csv":
        assert "another encoder under the same name" in render(board, style)


def test_the_same_results_twice_are_no_conflict(two_folders):
    (table,) = make_board([two_folders[0], two_folders[0]]).tables

    assert not [note for note in table.notes if note.startswith("Conflict")]


@pytest.mark.parametrize("style", FORMATS)
def test_the_command_prints_every_format_with_rank_sets_and_the_failed_encoder(style, two_folders, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = cli("leaderboard", two_folders[0], "--format", style)

    assert (found.code, found.err) == (0, "")
    assert "bad-nan" in found.out
    if style == "table":
        assert max(map(len, found.out.splitlines())) <= 80
        assert [block[0].split()[:2] for block in blocks(found.out)] == [["rank", "encoder"]] * len(blocks(found.out))
    elif style == "json":
        (table,) = json.loads(found.out)
        assert [row["rank"] for row in table["rows"]] == [[1, 1], [2, 2], None]
        assert "NaN" in table["rows"][2]["reason"]
    elif style == "csv":
        rows = list(csv.DictReader(io.StringIO(found.out)))
        assert [(row["encoder"], row["rank"]) for row in rows if row["column"] == "toy-task"] == [
            ("counting", "1"),
            ("random-projection?dim=3", "2"),
            ("bad-nan", ""),
        ]
    elif style == "html":
        assert [row[0].get("class") for row in Page(found.out).rows[1:]] == [None, None, "unranked"]


@pytest.mark.parametrize("style", FORMATS)
def test_the_command_prints_costs_in_every_format(style, two_folders, cli):
    found = cli("leaderboard", two_folders[0], "--by", "cost", "--format", style)

    assert (found.code, found.err) == (0, "")
    assert "counting" in found.out
