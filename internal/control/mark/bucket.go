package mark

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// Key is the key of an installation's mark in the bucket. It has its name from
// when only garbage collection stored marks.
func Key(installation string) string { return installation + "/collection.json" }

// object is the mark as stored in the bucket.
type object struct {
	What     string    `json:"what"`
	Run      string    `json:"run"`
	Serial   int64     `json:"serial"`
	Identity string    `json:"identity"`
	At       time.Time `json:"at"`
}

const what = "the last mark of the database that these archives belong to"

// Read reads the mark in the bucket. A mark that cannot be parsed gets an id that
// no other has and the highest serial, so that it counts as foreign.
func Read(ctx context.Context, b *bucket.Bucket) (m workspace.Mark, found bool, err error) {
	r, err := b.Store.Get(ctx, Key(b.Installation), 0)
	if errors.Is(err, store.ErrNotFound) {
		return m, false, nil
	}
	if err != nil {
		return m, false, fmt.Errorf("read the bucket's mark: %w", err)
	}
	defer r.Close()
	raw, err := io.ReadAll(io.LimitReader(r, 4<<10))
	if err != nil {
		return m, false, fmt.Errorf("read the bucket's mark: %w", err)
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil || !workspace.ValidID(o.Run) {
		return workspace.Mark{ID: "unreadable", Serial: unreadable}, true, nil
	}
	return workspace.Mark{ID: o.Run, Serial: o.Serial, Identity: o.Identity, At: o.At}, true, nil
}

const unreadable = 1 << 62

// Write stores the mark in the bucket.
func Write(ctx context.Context, b *bucket.Bucket, m workspace.Mark) error {
	raw, err := json.MarshalIndent(object{what, m.ID, m.Serial, m.Identity, m.At}, "", "  ")
	if err != nil {
		return err
	}
	if _, err := b.Store.Put(ctx, Key(b.Installation), bytes.NewReader(append(raw, '\n'))); err != nil {
		return fmt.Errorf("store the bucket's mark: %w", err)
	}
	return nil
}
