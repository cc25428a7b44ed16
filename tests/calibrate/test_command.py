"""``evaluator calibrate`` as a command: what it writes and what it refuses."""


def test_calibrate_writes_a_set(evaluator, tmp_path):
    rows = ["op_class,m,n,k,time_s"]
    for n in (1024, 4096, 8192):
        for m in (1, 64, 512, 4096):
            rows.append(f"gemm,{m},{n},4096,{3e-6 + max(2 * m * n * 4096 / 6e14, 2 * n * 4096 / 2.5e12)}")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    out = tmp_path / "mine.yaml"
    code, shown, _ = evaluator("calibrate", tmp_path / "data.csv", "--hardware", "h100-sxm", "--out", out)
    assert code == 0 and "gemm" in shown and out.read_text().startswith("# Written by")
    wrong = tmp_path / "mine.txt"
    code, _, told = evaluator("calibrate", tmp_path / "data.csv", "--hardware", "h100-sxm", "--out", wrong)
    assert code == 2 and "must end in .yaml" in told


def test_runs_of_a_server_are_sent_to_compare(evaluator, tmp_path):
    (tmp_path / "specs.json").write_text("[]")
    code, _, told = evaluator(
        "calibrate", tmp_path / "specs.json", "--hardware", "h100-sxm", "--out", tmp_path / "a.yaml"
    )
    assert code == 2 and "evaluator compare SPECS.json ACTUALS.csv --fit FOLDER" in told
