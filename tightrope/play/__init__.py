"""Play a trained policy in the browser: its network and the equations of its environment as data that a page runs."""
