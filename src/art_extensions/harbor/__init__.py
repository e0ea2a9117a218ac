"""Harbor's task folders as environments: an agent in a sandbox, and tests that give the reward."""
