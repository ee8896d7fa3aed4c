package postgres_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"codehub/internal/postgres"
)

// sealedWith is a value in the format of internal/users/sealed.
func sealedWith(key, text string) []byte {
	return append([]byte{1, byte(len(key))}, key+text...)
}

// More values than are read at a time are all sealed again, and a value that changes meanwhile is
// left as it is.
func TestResealEveryValue(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	e.exec(`CREATE TABLE things (id text PRIMARY KEY, who text NOT NULL, value bytea)`)
	for i := range 230 {
		e.exec(`INSERT INTO things VALUES ($1, 'ann', $2)`, fmt.Sprint(i), sealedWith("old", fmt.Sprint(i)))
	}
	e.exec(`INSERT INTO things VALUES ('none', 'ann', NULL)`)
	db := postgres.SealedColumnForTest{DB: e.DB, Table: "things", Column: "value", Key: "id", Owner: "'thing ' || id || ' ' || who"}
	seen, changed := 0, 0
	if err := db.SealedValues(t.Context(), func(v postgres.SealedValue) error {
		text, old := strings.CutPrefix(string(v.Value), string(sealedWith("old", "")))
		if v.Owner != "thing "+text+" ann" || !old {
			t.Errorf("%q of %q", v.Value, v.Owner)
		}
		if seen++; text == "77" {
			e.exec(`UPDATE things SET value = $1 WHERE id = '77'`, sealedWith("new", "changed"))
		}
		done, err := db.Reseal(t.Context(), v, sealedWith("new", text))
		if done {
			changed++
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if seen != 230 || changed != 229 {
		t.Errorf("%d values were seen and %d changed", seen, changed)
	}
	if counts := must(db.SealedKeys(t.Context()))(t); !maps.Equal(counts, map[string]int{"new": 230}) {
		t.Errorf("%v", counts)
	}
	if got := query[[]byte](e, `SELECT value FROM things WHERE id = '77'`); string(got) != string(sealedWith("new", "changed")) {
		t.Errorf("%q", got)
	}
}
