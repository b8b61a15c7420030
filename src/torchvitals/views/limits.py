"""Where a number stops being ordinary. The live half counts with the same limits."""

from typing import Final

VANISHING: Final = 1e-7
"""A layer's gradient norm below this."""
EXPLODING: Final = 1e2
"""A layer's gradient norm above this."""

RATIO_LOW: Final = 1e-5
RATIO_HIGH: Final = 1e-2
"""Healthy ‖Δw‖ / ‖w‖ of a step; around 1e-3 is the usual rule of thumb."""

SQUARES_LAG: Final = 2.3
"""√mean(g² / v̂) above this: Adam's second moment lags behind the gradients."""
EPSILON_RULES: Final = 10.0
"""√v̂ / ε below this: ε decides the step size."""
