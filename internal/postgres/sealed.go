package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// sealedColumn is a column with values of internal/users/sealed.
type sealedColumn struct {
	table, column string // the table may have an alias
	key           string // the primary key: one column
	owner         string // an SQL expression of what a value is sealed for
}

// sealedColumns are all such columns. A rotation of the keys seals them again.
var sealedColumns = []sealedColumn{
	{table: "secrets s", column: "value", key: "id", owner: secretOwner},
	{table: "git_connections c", column: "access_token", key: "id", owner: gitAccessOwner},
	{table: "git_connections c", column: "refresh_token", key: "id", owner: gitRefreshOwner},
	{table: "git_identities i", column: "private_key", key: "user_id", owner: gitKeyOwner},
}

// SealedValue is a sealed value of a table.
type SealedValue struct {
	Value []byte
	Owner string // that it is sealed for

	column sealedColumn
	key    string
}

// sealedPage is how many values are read at a time.
const sealedPage = 100

// SealedValues calls each with all sealed values, in no transaction.
func (db *DB) SealedValues(ctx context.Context, each func(SealedValue) error) error {
	return db.sealedValues(ctx, sealedColumns, each)
}

func (db *DB) sealedValues(ctx context.Context, columns []sealedColumn, each func(SealedValue) error) error {
	const verb = "read the sealed values"
	for _, c := range columns {
		after, more := "", true
		for more {
			rows, err := db.pool.Query(ctx, fmt.Sprintf(`
				SELECT %[3]s::text, %[2]s, %[4]s FROM %[1]s WHERE %[2]s IS NOT NULL AND %[3]s::text COLLATE "C" > $1
				ORDER BY %[3]s::text COLLATE "C" LIMIT $2`, c.table, c.column, c.key, c.owner), after, sealedPage)
			if err != nil {
				return failed(verb, err)
			}
			page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (SealedValue, error) {
				v := SealedValue{column: c}
				return v, row.Scan(&v.key, &v.Value, &v.Owner)
			})
			if err != nil {
				return failed(verb, err)
			}
			for _, v := range page {
				after = v.key
				if err := each(v); err != nil {
					return err
				}
			}
			more = len(page) == sealedPage
		}
	}
	return nil
}

// SealedKeys counts the sealed values by the id of their key.
func (db *DB) SealedKeys(ctx context.Context) (map[string]int, error) {
	return db.sealedKeys(ctx, sealedColumns)
}

func (db *DB) sealedKeys(ctx context.Context, columns []sealedColumn) (map[string]int, error) {
	const verb = "count the sealed values"
	counts := map[string]int{}
	for _, c := range columns {
		// The second byte is the length of the id that follows it.
		rows, err := db.pool.Query(ctx, fmt.Sprintf(`
			SELECT encode(substr(%[2]s, 3, get_byte(%[2]s, 1)), 'escape'), count(*) FROM %[1]s WHERE %[2]s IS NOT NULL GROUP BY 1`, c.table, c.column))
		if err != nil {
			return nil, failed(verb, err)
		}
		var id string
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error { counts[id] += n; return nil }); err != nil {
			return nil, failed(verb, err)
		}
	}
	return counts, nil
}

// Reseal replaces a value by the same one, sealed with another key. It reports false, and changes
// nothing, if the value was changed since it was read.
func (db *DB) Reseal(ctx context.Context, v SealedValue, sealed []byte) (bool, error) {
	c := v.column
	done, err := db.pool.Exec(ctx, fmt.Sprintf(`UPDATE %[1]s SET %[2]s = $3 WHERE %[3]s = $1 AND %[2]s = $2 AND %[4]s = $4`,
		c.table, c.column, c.key, c.owner), v.key, v.Value, sealed, v.Owner)
	return done.RowsAffected() > 0, failed("seal a value again", err)
}
