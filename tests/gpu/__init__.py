"""What only a real GPU can show. Elsewhere each test is skipped, and says why."""
