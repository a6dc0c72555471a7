-- The recovery journal. Times are unix seconds; a NULL done means: intended, not known to be done.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE attempts (
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    start_time INTEGER NOT NULL,      -- of an attempt that was never seen running: the time of its end
    seen INTEGER NOT NULL,            -- 1: seen running
    nodes TEXT NOT NULL,              -- space separated
    gres TEXT NOT NULL DEFAULT '',    -- Slurm's gres_detail, one per node, space separated
    state TEXT NOT NULL,              -- running | ended | restarted | done
    ended REAL,
    calm_since REAL,                  -- first seen PENDING without COMPLETING
    settled REAL,                     -- first seen without COMPLETING after its end
    restart_cnt INTEGER NOT NULL DEFAULT 0,
    user_id INTEGER NOT NULL DEFAULT -1,
    name TEXT NOT NULL DEFAULT '',
    max_restarts INTEGER,             -- what the job asked for, where only its end told it
    exit TEXT NOT NULL DEFAULT '',
    cause TEXT NOT NULL DEFAULT '',
    why TEXT NOT NULL DEFAULT '',
    told TEXT NOT NULL DEFAULT '',    -- the last judgement that was written to incidents
    bad TEXT NOT NULL DEFAULT '',     -- nodes that were judged bad, space separated
    PRIMARY KEY (cluster, job_id, start_time)
);
CREATE TABLE actions (
    id INTEGER PRIMARY KEY,
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    start_time INTEGER NOT NULL,
    kind TEXT NOT NULL,               -- requeue | start | release | hold | annotate
    intended REAL NOT NULL,
    done REAL,
    outcome TEXT NOT NULL DEFAULT '', -- done... | refused: ... | left: ... | gone: ... | late: ...
    detail TEXT NOT NULL DEFAULT ''
);
CREATE INDEX actions_by_job ON actions (cluster, job_id, start_time);
CREATE TABLE exclusions (             -- nodes that the watchdog has put into a job's ExcNodeList
    cluster TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    node TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (cluster, job_id, node)
);
CREATE TABLE events (                 -- spool files that are in here and may still be on disk
    name TEXT PRIMARY KEY,
    time REAL NOT NULL
);
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL DEFAULT '',
    job_id INTEGER NOT NULL DEFAULT 0,
    text TEXT NOT NULL
);
CREATE INDEX incidents_by_job ON incidents (job_id, time);
CREATE INDEX incidents_by_time ON incidents (time);
INSERT INTO meta VALUES ('schema', '3');
