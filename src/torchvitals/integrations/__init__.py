"""One framework a file: ignite, lightning, transformers, accelerate. Translation only.

Each gives the monitor what its framework knows (model, optimizers, epochs, evaluations, the step a
checkpoint was made at) and lets the monitor do the rest. Import the file you need:

    from torchvitals.integrations.lightning import VitalsCallback
"""
