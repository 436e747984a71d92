-- The tables of a label book, and what holds now as views of its events.

CREATE TABLE classes (
  class INTEGER PRIMARY KEY, name TEXT NOT NULL, key TEXT UNIQUE, colour INTEGER NOT NULL, crc INTEGER NOT NULL);

CREATE TABLE events (
  number INTEGER PRIMARY KEY, step INTEGER NOT NULL, time TEXT NOT NULL, person TEXT NOT NULL,
  event TEXT NOT NULL CHECK (event IN ('label', 'clear', 'skip', 'add class', 'rename class', 'merge classes',
    'delete class', 'undo')),
  example TEXT, digest TEXT, class INTEGER REFERENCES classes, value, source TEXT NOT NULL, crc INTEGER NOT NULL);

CREATE INDEX by_example ON events (example, digest, number);
CREATE INDEX by_class ON events (class, number);
CREATE INDEX by_person ON events (person, step);
CREATE INDEX of_class ON events (class, number) WHERE event IN ('rename class', 'merge classes', 'delete class');
CREATE UNIQUE INDEX undone ON events (value) WHERE event = 'undo';

-- Events that nobody has taken back. An undo takes back a step: all events of one request.
CREATE VIEW standing AS SELECT * FROM events e WHERE e.event <> 'undo'
  AND NOT EXISTS (SELECT 1 FROM events u WHERE u.event = 'undo' AND u.value = e.step);

CREATE VIEW class_names AS SELECT c.class, c.key, c.colour,
  coalesce((SELECT s.value FROM standing s WHERE s.class = c.class
    AND s.event IN ('rename class', 'merge classes', 'delete class') AND s.event = 'rename class'
    ORDER BY s.number DESC LIMIT 1), c.name) AS name,
  coalesce((SELECT s.event NOT IN ('merge classes', 'delete class') FROM standing s WHERE s.class = c.class
    ORDER BY s.number DESC LIMIT 1), 0) AS used
  FROM classes c;

-- What the classes of a run are called now; NULL for one that was deleted.
CREATE VIEW first_names AS SELECT c.class, c.name AS first, (SELECT n.name FROM class_names n WHERE n.used AND n.class =
  CASE WHEN (SELECT u.used FROM class_names u WHERE u.class = c.class) THEN c.class ELSE
    (WITH RECURSIVE way (class, at) AS (SELECT c.class, 0 UNION ALL
      SELECT m.value, m.number FROM way, standing m WHERE m.number = (
        SELECT s.number FROM standing s WHERE s.class = way.class AND s.number > way.at
        AND s.event IN ('rename class', 'merge classes', 'delete class') AND s.event <> 'rename class'
        ORDER BY s.number LIMIT 1))
    SELECT class FROM way ORDER BY at DESC LIMIT 1) END) AS name
  FROM classes c;

-- The last event that stands of each example and content; those of a person come before those of the run.
-- A class that was merged after the event is the one it was merged into, and none if it was deleted.
CREATE VIEW labels AS SELECT e.number, e.time, e.person, e.event, e.example, e.digest, e.source,
  (SELECT n.name FROM class_names n WHERE n.class =
    (WITH RECURSIVE way (class, at) AS (SELECT e.class, e.number UNION ALL
      SELECT m.value, m.number FROM way, standing m WHERE m.number = (
        SELECT s.number FROM standing s WHERE s.class = way.class AND s.number > way.at
        AND s.event IN ('rename class', 'merge classes', 'delete class') AND s.event <> 'rename class'
        ORDER BY s.number LIMIT 1))
    SELECT class FROM way ORDER BY at DESC LIMIT 1)) AS label
  FROM events e WHERE e.example IS NOT NULL AND e.number = (
    SELECT s.number FROM standing s WHERE s.example = e.example AND s.digest IS e.digest
    ORDER BY s.person <> '' DESC, s.number DESC LIMIT 1);

PRAGMA application_id = 1397574722;
PRAGMA user_version = 1;
