"""One thread for small decompositions."""

import pytest
import torch

from evalharness.numerics import one_thread


def test_the_number_of_threads_is_put_back_whatever_happens():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match="broke"), one_thread():
        raise ValueError("broke")
    assert torch.get_num_threads() == before
