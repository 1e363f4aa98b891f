"""When what was remembered and when forgotten, by stage and task of a series."""
