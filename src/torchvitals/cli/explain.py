"""`vitals explain`: the page of a rule: what it means, how it is judged, what looks like it."""

from __future__ import annotations

import click

from torchvitals.cli.options import echo_json, json_option

EPILOG = """\b
Examples:
  vitals explain                 all rules, a line each
  vitals explain dead_units      the page of one
"""


@click.command("explain", epilog=EPILOG)
@click.argument("rule", metavar="[RULE]", required=False)
@json_option
def command(rule: str | None, *, as_json: bool) -> None:
    """Print the page of a rule; without RULE, list them all.

    A page says how the ailment shows, why it hurts, how it is judged (with the limits and their
    defaults), and which healthy runs look like it.
    """
    from torchvitals.rules.catalogue import NAMES, rules
    from torchvitals.rules.pages import page
    from torchvitals.rules.plugged import plugged

    known = {one.name: one for one in (*rules(), *plugged())}
    if rule is None:
        listed = [known[name] for name in NAMES]
        listed += [one for name, one in known.items() if name not in NAMES]
        if as_json:
            echo_json(
                [{"name": one.name, "title": one.title, "needs": one.needs} for one in listed]
            )
            return
        width = max(map(len, known))
        for one in listed:
            click.echo(f"{one.name:<{width}}  {one.title}")
        return
    if rule not in known:
        from difflib import get_close_matches

        near = get_close_matches(rule, known, n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else " vitals explain lists them."
        raise click.BadParameter(f"there is no rule {rule!r}.{meant}", param_hint="RULE")
    text = page(known[rule])
    if as_json:
        echo_json({"name": rule, "title": known[rule].title, "page": text})
    else:
        click.echo(text)
