"""Programs that a build refuses because AOTAutograd would give other results than eager."""
