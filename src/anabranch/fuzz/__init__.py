"""Random models: is what they compute still the same after compiling?

drawing.py   what a drawn model is, and its text: a class that torch.export sees as a user's
draw.py      a seed -> a Drawing
kinds.py     the table of what can be drawn; each step is in one of images, sequences, pointwise,
             moves, rare_ops, reuse
program_builder.py  a drawing while it is drawn: each line is run as it is written
script_prelude.py   the text that opens every script: tensors by seed, and the comparison
substitute.py  a graph -> the graphs that rules drawn at random lead to
random_rewrites.py  a Drawing, captured and substituted -> what is wrong with it
training_trial.py   a model, trained: compiled steps beside those of eager and of an fp64 copy
trial.py     a Drawing -> an Outcome
shrink.py    a Drawing that fails -> a smaller one that still does
campaign.py  many seeds -> a record
"""
