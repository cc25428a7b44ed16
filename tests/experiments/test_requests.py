"""The requests of a measured run: which columns are read, and in which order requests come."""

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.experiments import read_requests


@pytest.fixture
def table(tmp_path):
    def write(*lines):
        path = tmp_path / "requests.csv"
        path.write_text("\n".join(lines))
        return path

    return write


def test_requests_come_in_order_of_arrival_from_zero(table):
    path = table(
        "arrival_s,queued_s,prompt_tokens,output_tokens,cached_tokens,ttft_ms,e2e_s",
        "0,7,100,10,,20,1.5",
        "0,5,30,1,30,nan,-1",
    )
    found = read_requests(path)
    assert found["arrival_s"].tolist() == [0.0, 2.0]  # queued_s is the better column
    assert found["request"].tolist() == [1, 0]
    assert found["cached_tokens"].tolist() == [29, 0]  # at least one token is computed
    assert found["ttft_s"].tolist()[1] == pytest.approx(0.02) and np.isnan(found["ttft_s"][0])
    assert found["e2e_s"].tolist()[1] == 1.5 and np.isnan(found["e2e_s"][0])


def test_a_file_that_is_no_table_is_refused(table):
    with pytest.raises(InputError, match=r"requests.csv: not readable as CSV"):
        read_requests(table(""))
    with pytest.raises(InputError, match=r"expected requests with prompt_tokens, output_tokens, one of queued_s"):
        read_requests(table("arrival_s,prompt_tokens,output_tokens", "0,1,1"))
