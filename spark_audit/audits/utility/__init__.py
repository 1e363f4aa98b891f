"""How well a checkpoint solves its tasks, stage by stage."""
