-- +goose Up

-- Which servers work with the database as it is. A server reads this at its start and with each
-- heartbeat, and ends if it knows no migration as new as works_since. A migration that earlier
-- servers do not work with sets works_since to its own number: compatibility.go has the rule.
CREATE TABLE compatibility (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    works_since bigint NOT NULL
);
INSERT INTO compatibility (works_since) VALUES (51);

-- +goose Down

DROP TABLE compatibility;
