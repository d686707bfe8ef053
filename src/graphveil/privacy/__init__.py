"""What is promised, what it costs, and what a paper claims it costs. Imports no torch."""
