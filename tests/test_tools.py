"""The comparison itself can fail."""

import pytest
import torch

from tools import assert_close


def test_tolerance_follows_the_coarser_dtype():
    value = torch.ones(3, dtype=torch.float64)
    assert_close(value, value + 1e-13)
    with pytest.raises(AssertionError):
        assert_close(value, value + 1e-8)
    assert_close(value, value.float() + 1e-6)
    with pytest.raises(AssertionError):
        assert_close(value, value.float() + 1e-4)


def test_override_needs_a_reason():
    with pytest.raises(ValueError, match="needs a reason"):
        assert_close(1.0, 1.1, rtol=0.2)
    assert_close(1.0, 1.1, rtol=0.2, reason="shown here")
