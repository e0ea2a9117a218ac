"""Ledger, jobs and the controller's lock in Postgres, for several servers. Nothing else imports asyncpg."""
