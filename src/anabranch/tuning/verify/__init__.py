"""Does a `kernel` compute what its task's body does, and a `plan` what the model does?"""
