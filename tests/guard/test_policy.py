"""What follows the last skip allowed."""

import pytest

from torchvitals.guard.policy import Policy


def policy(action, escalate=None):
    return Policy(action, escalate=escalate, max_skips=5, within=50)


@pytest.mark.parametrize(
    ("action", "cause", "loss_is_bad", "expected"),
    [
        ("rollback", "non_finite", None, "rollback"),
        ("rollback", "non_finite", False, "rollback"),
        ("rollback", "spike", True, "rollback"),
        ("rollback", "spike", None, "rollback"),
        ("rollback", "spike", False, "accept"),
        ("skip", "non_finite", None, "stop"),
        ("skip", "spike", True, "accept"),
        ("skip", "spike", False, "accept"),
        ({"spike": "rollback"}, "non_finite", None, "rollback"),
    ],
)
def test_escalation_by_cause(action, cause, loss_is_bad, expected):
    assert policy(action).escalation(cause, loss_is_bad) == expected
    assert policy(action, "warn").escalation(cause, loss_is_bad) == "warn"


def test_states_are_kept_only_where_somebody_may_go_back():
    assert policy("rollback").rolls_back
    assert not policy("skip").rolls_back
    assert policy("skip", "rollback").rolls_back
    assert policy({"spike": "rollback"}).rolls_back


def test_gradients_change_only_where_something_clips():
    assert policy("clip").clips
    assert policy(lambda _: None).clips
    assert not policy("rollback").clips
