package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotRunning is the error of Find if no PostgreSQL runs on the data folder.
var ErrNotRunning = errors.New("no database runs in the data folder")

// findWait bounds how long Find waits for a PostgreSQL that is starting.
const findWait = 30 * time.Second

// Exists reports whether the data folder has a database, running or not.
func Exists(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "postgres", dataName, "PG_VERSION"))
	return !errors.Is(err, fs.ErrNotExist) // other errors are reported when it is opened
}

// Find returns the address of the PostgreSQL that a running server has on the data
// folder, for commands. It starts and changes nothing. It waits for a
// PostgreSQL that is starting; ErrNotRunning if none runs. The caller must be the
// server's OS user.
func Find(ctx context.Context, dir string) (string, error) {
	acc, err := chooseAccounts("")
	if err != nil {
		return "", err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find data folder: %w", err)
	}
	base := filepath.Join(dir, "postgres")
	if target, err := filepath.EvalSymlinks(base); err == nil {
		base = target
	}
	socket, err := (&layout{base: base, acc: acc}).socketFolder()
	if err != nil {
		return "", err
	}
	address := addressOf(socket)
	cfg, err := pgconn.ParseConfig(address)
	if err != nil {
		return "", fmt.Errorf("connect to the database: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, findWait)
	defer cancel()
	for {
		conn, err := pgconn.ConnectConfig(bounded, cfg)
		if err == nil {
			return address, conn.Close(bounded)
		}
		var answer *pgconn.PgError
		if errors.As(err, &answer) && answer.Code != "57P03" { // starting, recovering, stopping
			return "", fmt.Errorf("connect to the database: %w", err)
		}
		if pause(bounded, 100*time.Millisecond) != nil {
			if ctx.Err() != nil {
				return "", fmt.Errorf("look for the database in %s: %w", dir, ctx.Err())
			}
			return "", fmt.Errorf("%w %s: %w", ErrNotRunning, dir, err)
		}
	}
}

// addressOf returns the URL of the database for the folder of its socket.
func addressOf(socketFolder string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User(roleName), Path: "/" + databaseName,
		RawQuery: url.Values{"host": {socketFolder}, "port": {port}, "sslmode": {"disable"}}.Encode(),
	}).String()
}
