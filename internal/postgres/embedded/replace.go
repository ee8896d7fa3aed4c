package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// nextName is the folder in the postgres folder in which Upgrade and Restore make the database
// that replaces the present one. It has the same files as the postgres folder.
const nextName = "next"

// Replaced is what Upgrade or Restore has done.
type Replaced struct {
	From, To int    // major versions of PostgreSQL; From is 0 if there was no database
	Dump     string // the dump from which the new database was made
	Kept     string // folder with the former database; empty: there was none
	Tables   int
	Rows     int64
}

// Upgrade moves the database of the data folder to the newest installed PostgreSQL: it dumps the
// database, makes a new one of the dump, compares the numbers of rows and exchanges the two
// folders. The former one is kept. With an error, or if it is killed, the database is as before.
// If it is of the newest version already, From equals To and nothing is done. No server may run.
func Upgrade(ctx context.Context, cfg Config) (Replaced, error) {
	have, err := installations(ctx, cfg.BinDirs)
	if err != nil {
		return Replaced{}, err
	}
	return locked(cfg, func(cfg Config, lay *layout, made int) (Replaced, error) {
		switch made {
		case 0:
			return Replaced{}, fmt.Errorf("there is no database in %s", lay.path(dataName))
		case have[0].major:
			return Replaced{From: made, To: made}, nil
		}
		return upgrade(ctx, cfg, lay, made, have[0])
	})
}

// Restore replaces the database of the data folder by a dump in the custom format of pg_dump. The
// former one is kept. With an error, or if it is killed, the database is as before. No server may
// run.
func Restore(ctx context.Context, cfg Config, file string) (Replaced, error) {
	return restore(ctx, cfg, func(inst installation) (source, error) {
		if err := checkDump(ctx, inst, file); err != nil {
			return source{}, err
		}
		return dumpFile(ctx, inst, file)
	})
}

// RestoreBy is Restore with a function that loads the rows into the new database, which is empty,
// at that address. name is that of what it loads.
func RestoreBy(ctx context.Context, cfg Config, name string, load func(ctx context.Context, url string) error) (Replaced, error) {
	return restore(ctx, cfg, func(installation) (source, error) { return source{name, load}, nil })
}

func restore(ctx context.Context, cfg Config, from func(installation) (source, error)) (Replaced, error) {
	have, err := installations(ctx, cfg.BinDirs)
	if err != nil {
		return Replaced{}, err
	}
	return locked(cfg, func(cfg Config, lay *layout, made int) (Replaced, error) {
		inst, ok := ofMajor(have, made)
		if !ok {
			inst = have[0]
		}
		src, err := from(inst)
		if err != nil {
			return Replaced{}, err
		}
		return lay.replace(ctx, cfg, made, inst, src, func(map[string]int64) error { return nil })
	})
}

// source is what a new database is made of.
type source struct {
	name string
	load func(ctx context.Context, url string) error
}

// dumpFile is a dump in the custom format of pg_dump.
func dumpFile(ctx context.Context, inst installation, file string) (source, error) {
	program, err := inst.client(ctx, "pg_restore")
	if err != nil {
		return source{}, err
	}
	return source{file, func(ctx context.Context, url string) error {
		err := runClient(client(ctx, program, "--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", "--dbname="+url, file))
		if err != nil {
			return fmt.Errorf("restore %s: %w", file, err)
		}
		return nil
	}}, nil
}

// checkDump refuses a file that is no dump of codehub's database.
func checkDump(ctx context.Context, inst installation, file string) error {
	restore, err := inst.client(ctx, "pg_restore")
	if err != nil {
		return err
	}
	var list bytes.Buffer
	cmd := client(ctx, restore, "--list", file)
	cmd.Stdout = &list
	if err := runClient(cmd); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if !strings.Contains(list.String(), " goose_db_version ") {
		return fmt.Errorf("%s is no dump of codehub's database", file)
	}
	return nil
}

// locked calls f with the data folder locked, in cfg too, and the version of its database.
func locked(cfg Config, f func(cfg Config, lay *layout, made int) (Replaced, error)) (done Replaced, err error) {
	if cfg.Lock == nil {
		if cfg.Lock, err = LockDir(cfg.Dir); err != nil {
			return Replaced{}, err
		}
		defer func() { err = errors.Join(err, cfg.Lock.Release()) }()
	}
	acc, err := chooseAccounts(cfg.User)
	if err != nil {
		return Replaced{}, err
	}
	lay, err := openLayout(cfg.Dir, acc)
	if err != nil {
		return Replaced{}, err
	}
	defer lay.root.Close()
	made, err := lay.clusterVersion()
	if err != nil {
		return Replaced{}, err
	}
	return f(cfg, lay, made)
}

func upgrade(ctx context.Context, cfg Config, lay *layout, made int, to installation) (Replaced, error) {
	old, err := Start(ctx, cfg)
	if err != nil {
		return Replaced{}, err
	}
	before, err := rowCounts(ctx, old.URL(), "")
	var file string
	if err == nil { // the newer pg_dump knows both versions
		file, err = backup(ctx, to, cfg, old.URL(), fmt.Sprintf("postgresql-%d", to.major))
	}
	if err = errors.Join(err, old.Stop(context.WithoutCancel(ctx))); err != nil {
		return Replaced{}, err
	}
	src, err := dumpFile(ctx, to, file)
	if err != nil {
		return Replaced{}, err
	}
	return lay.replace(ctx, cfg, made, to, src, func(after map[string]int64) error {
		for _, table := range slices.Sorted(maps.Keys(before)) {
			if n, ok := after[table]; !ok || n != before[table] {
				return fmt.Errorf("the new database differs from the former one: the table %s has %d rows instead of %d", table, n, before[table])
			}
		}
		return nil
	})
}

// replace makes a database of the source with the programs of to, and puts it in place of the
// present one, which it keeps.
func (l *layout) replace(ctx context.Context, cfg Config, made int, to installation, from source, check func(rows map[string]int64) error) (done Replaced, err error) {
	done = Replaced{From: made, To: to.major, Dump: from.name}
	socket, err := l.socketFolder()
	if err != nil {
		return done, err
	}
	lock, err := l.claim(ctx, socket) // it stops what a killed server has left
	if err != nil {
		return done, err
	}
	defer lock.Close()
	rows, err := l.makeNext(ctx, cfg, to, from, check)
	if err == nil {
		done.Kept, err = l.exchange(made)
	}
	removed := l.root.RemoveAll(nextName)
	if err != nil {
		return done, errors.Join(err, removed)
	}
	// The new database is in place, also if a file of next is left; the next command removes it.
	done.Tables = len(rows)
	for _, n := range rows {
		done.Rows += n
	}
	return done, nil
}

// makeNext makes the database in the folder next, and leaves it stopped.
func (l *layout) makeNext(ctx context.Context, cfg Config, to installation, from source, check func(rows map[string]int64) error) (rows map[string]int64, err error) {
	next, err := l.inside(nextName)
	if err != nil {
		return nil, err
	}
	defer next.root.Close()
	s := newServer(cfg, next, to)
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	if s.socket, err = next.socketFolder(); err != nil {
		return nil, err
	}
	s.url = addressOf(s.socket)
	lock, err := next.claim(ctx, s.socket) // it stops what a killed command has left
	if err != nil {
		return nil, err
	}
	err = next.root.RemoveAll(dataName)
	if err == nil {
		err = next.createCluster(ctx, to, lock, s.more)
	}
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, err
	}
	if err := s.up(ctx); err != nil {
		return nil, err
	}
	s.log.Info("restoring the database", "from", from.name, "postgres", to.major)
	if err := from.load(ctx, s.url); err != nil {
		return nil, err
	}
	// A dump has no statistics for queries.
	if rows, err = rowCounts(ctx, s.url, "ANALYZE"); err != nil {
		return nil, err
	}
	return rows, check(rows)
}

// inside returns the layout of a folder in the postgres folder.
func (l *layout) inside(name string) (*layout, error) {
	if err := l.folder(l.root, name); err != nil {
		return nil, err
	}
	in := &layout{base: l.path(name), acc: l.acc}
	var err error
	if in.root, err = l.root.OpenRoot(name); err != nil {
		return nil, fmt.Errorf("open database folder: %w", err)
	}
	if err := in.subfolders(); err != nil {
		return nil, errors.Join(err, in.root.Close())
	}
	return in, nil
}

// exchange puts the database of the folder next in place of the present one, in one step, and
// returns the folder in which that one is kept. The caller holds the cluster's lock.
func (l *layout) exchange(made int) (kept string, err error) {
	const next = nextName + "/" + dataName
	if made == 0 {
		if err := l.root.Remove(dataName); err != nil && !errors.Is(err, os.ErrNotExist) { // it is empty
			return "", fmt.Errorf("put the new database in place: %w", err)
		}
		if err := l.root.Rename(next, dataName); err != nil {
			return "", fmt.Errorf("put the new database in place: %w", err)
		}
		return "", l.syncFolder()
	}
	// The new one gets the name first under which the former one is kept, so that nothing is left
	// to do after the exchange.
	name := fmt.Sprintf("%s.%d-%s", dataName, made, time.Now().UTC().Format(dumpTime))
	if err := l.root.Rename(next, name); err != nil {
		return "", fmt.Errorf("put the new database in place: %w", err)
	}
	if err := l.swap(dataName, name); err != nil {
		return "", errors.Join(fmt.Errorf("exchange %s and %s: %w", l.path(dataName), l.path(name), err), l.root.Rename(name, next))
	}
	return l.path(name), l.syncFolder()
}

// swap exchanges two folders atomically.
func (l *layout) swap(a, b string) error {
	folder, err := l.root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	var swapErr error
	err = control(folder, func(fd uintptr) { swapErr = unix.Renameat2(int(fd), a, int(fd), b, unix.RENAME_EXCHANGE) })
	return errors.Join(err, swapErr)
}

// rowCounts executes a statement, unless it is empty, and counts the rows of all tables.
func rowCounts(ctx context.Context, url, statement string) (map[string]int64, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	rows, err := conn.Query(ctx, `
		SELECT oid::regclass::text FROM pg_class
		WHERE relkind IN ('r', 'm') AND relnamespace::regnamespace::text !~ '^(pg_|information_schema$)'`)
	var names []string
	if err == nil {
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	counts := map[string]int64{}
	for _, name := range names {
		var n int64
		if err == nil {
			err = conn.QueryRow(ctx, "SELECT count(*) FROM "+name).Scan(&n)
		}
		counts[name] = n
	}
	if err != nil {
		return nil, fmt.Errorf("count the rows: %w", err)
	}
	return counts, nil
}
