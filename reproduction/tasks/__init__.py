"""What is computed: each module takes settings and seeds and gives plain numbers."""
