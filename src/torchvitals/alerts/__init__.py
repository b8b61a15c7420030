"""Who is told when something is wrong: Slack, Discord, Teams, e-mail and the rest. No torch."""

from torchvitals.alerts.alerts import Alerts, make_alerts

__all__ = ["Alerts", "make_alerts"]
