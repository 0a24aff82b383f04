"""Discovery: equations that nobody wrote. `settings` says over what, `terms` enumerates small
graphs and finds equal ones, `implied` asks what is known already, `equations` makes rules of it."""
