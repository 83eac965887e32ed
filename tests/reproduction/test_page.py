from reproduction.page import refresh


def test_only_what_stands_between_the_marks_changes(tmp_path):
    results = tmp_path / "results"
    (results / "table2").mkdir(parents=True)
    (results / "table2" / "table.md").write_text("## Title\n\nnumbers\n\n![](figure.png)\n")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "before\n<!-- results: table2 -->\nold\n<!-- end -->\nafter\n"
        "<!-- results: table3 -->\n<!-- end -->\n"
    )
    assert refresh(page, results) == ["table2"]
    once = page.read_text()
    assert once == (
        "before\n<!-- results: table2 -->\nnumbers\n\n![](../results/table2/figure.png)\n"
        "<!-- end -->\nafter\n"
        "<!-- results: table3 -->\nNot run yet: `python -m reproduction table3`.\n<!-- end -->\n"
    )
    refresh(page, results)
    assert page.read_text() == once
