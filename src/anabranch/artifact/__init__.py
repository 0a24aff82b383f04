"""The file that a plan travels in, written and read without running anything in it.

`file` is the zip and its manifest, `schema` the plan as JSON text, `weights` the constants;
`bounds`, `bodies`, `operators` and `argument_checks` are what a file from elsewhere is checked by.
"""
