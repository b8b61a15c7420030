"""Reading curves: where a loss is heading, which schedule a learning rate follows.

    forecast    the loss at a later step, with a band, or why it is not known
    recognise   the shape of a learning-rate schedule
    trend_of    falling, flat or rising lately

All of it is numpy on two arrays, steps and values; nothing here knows of runs or of torch.
"""

from torchvitals.curves.forecast import Forecast, forecast
from torchvitals.curves.schedule import Schedule, recognise
from torchvitals.curves.trend import Direction, trend_of

__all__ = ["Direction", "Forecast", "Schedule", "forecast", "recognise", "trend_of"]
