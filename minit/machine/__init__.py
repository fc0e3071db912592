"""A machine of which minit is the first program: what a launcher does where there is no host."""
