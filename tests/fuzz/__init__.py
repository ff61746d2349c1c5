"""Coverage-guided fuzzing, for what examples and properties do not find.

`python -m tests.fuzz --seconds 60` runs every target for that long and fails with the input that broke one. Needs
`atheris`, which is installed for this purpose only. What was found is kept as a row of the unit tests.
"""
