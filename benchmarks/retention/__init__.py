"""Whether SPARK keeps earlier tasks as ER does, on tasks that ER is known to learn."""
