"""The audit of doors: what each access to a checkpoint gives away of its rows."""
