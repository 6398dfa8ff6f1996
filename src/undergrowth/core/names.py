"""Names that several packages agree on: the keys of batches, carries, packets and states."""

from __future__ import annotations

# Batches (`Steps.data`, and what `LoopClient.step` receives).
X, Y = "x", "y"  # inputs and labels of the samples
AUGMENT = "augment"  # random choices of the run's augmentation for each sample, see `Augmentation.draw`
HELD = "held"  # for each sample, which classes the data that it belongs to has
KEYS = "keys"  # random key of each sample, from which dropout layers draw, see `KeyedDropout`
TEACHER = "teacher"  # logits to learn, one row for each sample
WEIGHT = "weight"  # weight of each sample; only in batches that hold the samples of several clients, see LossInputs

# Carries (what `LoopClient.begin` and `step` hand on).
PARAMETERS, BUFFERS = "parameters", "buffers"  # of the model in training, by name
RECEIVED = "received"  # the weights that training started from, and what a method added to them
FINISH = "finish"  # values that only `finish` reads; engines neither stack nor compare them
STEPS_DONE = "steps done"  # number of steps before `finish`, set by the loop that runs them

# Parts of packets.
CHANGE = "change"  # upload: changes of received tensors, by their names, instead of the tensors themselves

# Scalars of packets.
SAMPLES = "samples"  # upload: number of samples trained on; WeightedMean weighs by it
LOSS = "loss"  # upload: mean training loss; sent if the run's sampler needs it
EPOCHS = "epochs"  # download: epochs to train instead of the run's
ROUND = "round"  # download: the round of the run, if the node that asks counts other rounds; for `train.schedule`
SEED = "seed"  # download: seed of the initial weights of a device that receives none
RUNG = "rung"  # upload: position of the device's model in the run's ladder

# Tags of packets.
MODEL_NAME = "model"  # download: name of the device's model in the run's ladder; "" is the run's model
PROBLEM = "problem"  # upload: why it cannot be used, where the device finds that out itself
PHASE = "phase"  # download: the phase of a method that has several

# States of servers and of devices.
MODEL = "model"  # weights of the model of the server or the device; that of the server is evaluated by default
