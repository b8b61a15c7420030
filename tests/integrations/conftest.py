"""The frameworks are imported here once: their own imports warn, and warnings are errors."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import accelerate  # noqa: F401
    import ignite.engine
    import ignite.handlers  # noqa: F401
    import lightning.pytorch  # noqa: F401
    import transformers

    transformers.Trainer  # noqa: B018  # loads when it is named
