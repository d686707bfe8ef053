"""The tables of a ledger on PostgreSQL, what guards them, and who may do what; SQL as text.

The server keeps the chain by itself, whoever writes and by whatever program: an entry follows the
last one and has its hash, nothing is changed or removed, and accounts are opened by the owner of
the tables alone.
"""

from __future__ import annotations

import re
from string import Template

from graphveil._errors import InvalidInputError

LOCK = 0x67766C67  # of the advisory lock that a writer holds, once in each database
TABLES = ("graphveil_entries", "graphveil_progress")
GUARDS = {  # of each table: its triggers, without which ``verify`` says that nothing holds
    "graphveil_entries": ("graphveil_keep", "graphveil_append"),
    "graphveil_progress": ("graphveil_keep",),
}

# Two entries cannot follow the same one, whatever else goes wrong: ``previous`` is unique.
_ENTRIES = """
CREATE TABLE graphveil_entries (
    seq bigint PRIMARY KEY,
    body text NOT NULL,
    previous text NOT NULL UNIQUE,
    hash text NOT NULL UNIQUE
)
"""
# Only added to, as entries are: how far a part has come is its largest note.
_PROGRESS = """
CREATE TABLE graphveil_progress (
    id text NOT NULL,
    place text NOT NULL,
    noted bigint NOT NULL,
    PRIMARY KEY (id, place, noted)
)
"""
_KEEP = """
CREATE FUNCTION graphveil_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'what a ledger has is neither changed nor removed'
        USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
# A body is parsed without what JSON may hold and PostgreSQL may not: half letters, and NUL.
_APPEND = Template(r"""
CREATE FUNCTION graphveil_append() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$$$
DECLARE
    last record;
    kind text;
BEGIN
    PERFORM pg_advisory_xact_lock($lock);
    EXECUTE format(
        'SELECT seq, hash FROM %I.%I ORDER BY seq DESC LIMIT 1', TG_TABLE_SCHEMA, TG_TABLE_NAME
    ) INTO last;
    IF NEW.seq IS DISTINCT FROM coalesce(last.seq, 0) + 1
        OR NEW.previous IS DISTINCT FROM coalesce(last.hash, repeat('0', 64))
        OR NEW.hash IS DISTINCT FROM
            encode(sha256(convert_to(NEW.previous || E'\n' || NEW.body, 'UTF8')), 'hex')
    THEN
        RAISE EXCEPTION 'an entry must follow the last one, and have its hash'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    kind := regexp_replace(
        NEW.body, '\\u([dD][89a-fA-F][0-9a-fA-F]{2}|0000)', '\\u003f', 'g'
    )::json ->> 'kind';
    IF (kind IS NULL OR kind NOT IN ('format', 'reserve', 'begin', 'settle')) AND NOT pg_has_role(
        current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'MEMBER'
    ) THEN
        RAISE EXCEPTION 'accounts are opened, and ledgers moved, by their owner alone'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$$$
""").substitute(lock=LOCK)

CREATE = (
    _ENTRIES,
    _PROGRESS,
    _KEEP,
    _APPEND,
    *(
        f"CREATE TRIGGER graphveil_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION graphveil_keep()"
        for table in TABLES
    ),
    "CREATE TRIGGER graphveil_append BEFORE INSERT ON graphveil_entries "
    "FOR EACH ROW EXECUTE FUNCTION graphveil_append()",
    # ALWAYS: a session that calls itself a replica does not go round them.
    *(
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {guard}"
        for table, guards in GUARDS.items()
        for guard in guards
    ),
)

# Each trigger of a ledger that is there and always on, and each table that a crash leaves whole.
CHECK = """
SELECT relname::text, tgname::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
WHERE tgenabled = 'A' AND relpersistence = 'p' AND tgrelid IN (
    to_regclass('graphveil_entries'), to_regclass('graphveil_progress')
)
"""

_ROLES = Template("""\
-- Who may do what with the ledger of this database's schema. Run it as the owner of the ledger,
-- who may make roles, once the ledger is there; then give people a role each:
--     GRANT $trainers TO anna;
BEGIN;
DO $$$$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '$trainers') THEN
        CREATE ROLE $trainers NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '$auditors') THEN
        CREATE ROLE $auditors NOLOGIN;
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO $trainers, $auditors', current_schema());
END $$$$;
REVOKE ALL ON graphveil_entries, graphveil_progress FROM PUBLIC, $trainers, $auditors;
-- Who trains adds entries, and changes none.
GRANT SELECT, INSERT ON graphveil_entries, graphveil_progress TO $trainers;
-- Who audits reads.
GRANT SELECT ON graphveil_entries, graphveil_progress TO $auditors;
COMMIT;
""")


def roles_sql(trainers: str, auditors: str) -> str:
    """What makes two roles: of those who train, and of those who audit."""
    for name in (trainers, auditors):
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
            raise InvalidInputError(
                "A role must have a name of 1 to 63 letters from a to z, digits and underscores. "
                f"Got {name!r} instead."
            )
    if trainers == auditors:
        raise InvalidInputError(f"The two roles must differ. Got {trainers!r} twice.")
    return _ROLES.substitute(trainers=trainers, auditors=auditors)
