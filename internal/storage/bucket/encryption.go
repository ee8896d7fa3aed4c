package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"filippo.io/age"

	"codehub/internal/base/setting"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

const (
	// keysName is the object that shows by which keys those of workspaces are encrypted.
	keysName = "keys.age"
	// keyFolder has the keys of a workspace: {recipient}.age, encrypted for the recipients of the key file. A workspace
	// has one, or several if two servers made the first one at the same time. They are never replaced by others.
	keyFolder = "keys"
	keySuffix = ".age"
	// keyRemembered is how long the keys of a workspace are kept in memory.
	keyRemembered = 10 * time.Minute
	maxKey        = 4 << 10
)

const keySetting = "CODEHUB_ARCHIVE_KEY_FILE"

// encrypted is a store whose archives, backups of homes and backups of databases are encrypted as they are stored, and
// decrypted as they are read. Sizes of Stat and List are those that are stored. Other objects stay as they are.
type encrypted struct {
	store.Store                    // without encryption
	b           *Bucket            // for its settings
	source      *encryption.Source // of Store
	mu          sync.Mutex
	known       map[string]remembered // keys of workspaces, by {installation}/{workspace}

	checking sync.Mutex
	checked  bool // the keys of the bucket are those of the file
}

type remembered struct {
	keys []encryption.Key
	at   time.Time
}

func newEncrypted(s store.Store, b *Bucket) *encrypted {
	e := &encrypted{Store: s, b: b, known: map[string]remembered{}}
	e.source = encryption.NewSource(e.stored, e.identities)
	return e
}

// stored reads what is stored of an object.
func (e *encrypted) stored(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if length < 0 {
		return e.Store.Get(ctx, key, offset)
	}
	return e.Store.GetRange(ctx, key, offset, length)
}

// encryptable reports whether objects of this kind are encrypted.
func (k Kind) encryptable() bool { return k == Home || k == Manifest || k == Pack || k == Backup }

func (e *encrypted) Get(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	if !ParseKey(key).Kind.encryptable() || e.b.Keys == nil && offset > 0 {
		return e.Store.Get(ctx, key, offset)
	}
	return e.source.Range(ctx, key, offset, -1)
}

func (e *encrypted) GetRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	// A server without keys does not start if the bucket has any.
	if !ParseKey(key).Kind.encryptable() || e.b.Keys == nil {
		return e.Store.GetRange(ctx, key, offset, length)
	}
	return e.source.Range(ctx, key, offset, length)
}

// Put returns the length of the content.
func (e *encrypted) Put(ctx context.Context, key string, r io.Reader) (int64, error) {
	encrypt, err := e.encryptor(ctx, key)
	if err != nil {
		return 0, err
	}
	put := encryption.Put(func(ctx context.Context, r io.Reader) (int64, error) { return e.Store.Put(ctx, key, r) })
	if encrypt != nil {
		put = encryption.Encrypting(encrypt, put)
		defer e.source.Forget(key)
	}
	return put(ctx, r)
}

// encryptor returns how a new object is encrypted; nil: not.
func (e *encrypted) encryptor(ctx context.Context, key string) (func(io.Reader) (io.Reader, error), error) {
	k := ParseKey(key)
	if !k.Kind.encryptable() || !e.b.encrypts() {
		return nil, nil
	}
	if k.Kind == Backup {
		return e.b.Keys.Encrypt, e.b.checkKeys(ctx)
	}
	recipient, err := e.b.recipient(ctx, workspace.ID(k.Workspace))
	return func(r io.Reader) (io.Reader, error) { return encryption.EncryptFor(recipient, r) }, err
}

// identities returns the keys of the workspace that an object is of, or those of the file for a database.
func (e *encrypted) identities(ctx context.Context, key string) ([]age.Identity, error) {
	if e.b.Keys == nil {
		return nil, fmt.Errorf("%s: %w: set %s to the file with its keys", key, encryption.ErrKey, keySetting)
	}
	k := ParseKey(key)
	if k.Kind == Backup {
		return e.b.Keys.Identities(), nil
	}
	keys, err := e.b.workspaceKeys(ctx, k.Installation, workspace.ID(k.Workspace))
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: %w: the key of the workspace is not in the bucket", key, encryption.ErrKey)
	}
	ids := make([]age.Identity, len(keys))
	for i, k := range keys {
		ids[i] = k.Identity()
	}
	return ids, nil
}

// encrypts reports whether new objects are encrypted.
func (b *Bucket) encrypts() bool { return b.Keys != nil && b.Encrypt }

func keysOf(installation string, id workspace.ID) string {
	return installation + "/" + string(id) + "/" + keyFolder + "/"
}

// workspaceKeys returns the keys of a workspace of any installation, the first of which is for new objects.
func (b *Bucket) workspaceKeys(ctx context.Context, installation string, id workspace.ID) ([]encryption.Key, error) {
	prefix := keysOf(installation, id)
	e := b.encrypted
	e.mu.Lock()
	known, ok := e.known[prefix]
	e.mu.Unlock()
	if ok && time.Since(known.at) < keyRemembered {
		return known.keys, nil
	}
	var keys []encryption.Key
	for o, err := range e.Store.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if ParseKey(o.Key).Kind != WorkspaceKey {
			continue
		}
		key, err := b.readKey(ctx, o.Key)
		if errors.Is(err, store.ErrNotFound) { // it was removed meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(keys) > 0 { // another server may make one
		e.known[prefix] = remembered{keys, time.Now()}
	}
	return keys, nil
}

// forgetKeys makes the next use of a workspace's keys read them.
func (b *Bucket) forgetKeys(installation string, id workspace.ID) {
	e := b.encrypted
	e.mu.Lock()
	delete(e.known, keysOf(installation, id))
	e.mu.Unlock()
	e.source.Forget(installation + "/" + string(id) + "/")
}

// readSecret reads a small object that is encrypted for the recipients of the key file.
func (b *Bucket) readSecret(ctx context.Context, key string) ([]byte, error) {
	r, err := b.encrypted.Store.Get(ctx, key, 0)
	if err != nil {
		return nil, err
	}
	r, err = encryption.Open(ctx, r, key, func(context.Context, string) ([]age.Identity, error) { return b.Keys.Identities(), nil })
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxKey))
}

// putSecret stores a small object, encrypted for the recipients of the key file.
func (b *Bucket) putSecret(ctx context.Context, key, content string) error {
	r, err := b.Keys.Encrypt(strings.NewReader(content))
	if err != nil {
		return err
	}
	sealed, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, err = b.encrypted.Store.Put(ctx, key, bytes.NewReader(sealed))
	return err
}

// readKey reads the key of a workspace.
func (b *Bucket) readKey(ctx context.Context, name string) (encryption.Key, error) {
	content, err := b.readSecret(ctx, name)
	if err != nil {
		return encryption.Key{}, err
	}
	key, err := encryption.ParseKey(string(content))
	if err == nil && key.Recipient()+keySuffix != path.Base(name) {
		err = errors.New("it is the key of another recipient")
	}
	if err != nil {
		return encryption.Key{}, fmt.Errorf("%s: %w: %w", name, encryption.ErrKey, err)
	}
	return key, nil
}

// recipient returns for whom new objects of a workspace are encrypted, and makes its key if it has none; "": they are
// not encrypted. A workspace whose keys cannot be read gets no object, and no further key.
func (b *Bucket) recipient(ctx context.Context, id workspace.ID) (string, error) {
	if !b.encrypts() {
		return "", nil
	}
	if err := b.checkKeys(ctx); err != nil {
		return "", err
	}
	// The keys are read from the bucket, as another server may have removed some.
	b.encrypted.mu.Lock()
	delete(b.encrypted.known, keysOf(b.Installation, id))
	b.encrypted.mu.Unlock()
	keys, err := b.workspaceKeys(ctx, b.Installation, id)
	if err != nil {
		return "", fmt.Errorf("read the key of workspace %s: %w", id, err)
	}
	if len(keys) > 0 {
		return keys[0].Recipient(), nil
	}
	// Another server may have read a newer key file, and look through the keys only once.
	if content, err := b.readSecret(ctx, b.Installation+"/"+keysName); err != nil {
		return "", err
	} else if string(content) != b.recipients() {
		return "", keyProblem{&setting.Problem{Setting: keySetting, Why: "the keys of this installation are encrypted for other recipients than those of the file", Do: "restart this server with the same file as the others"}}
	}
	key, err := encryption.NewKey()
	if err != nil {
		return "", err
	}
	name := keysOf(b.Installation, id) + key.Recipient() + keySuffix
	if err := b.putSecret(ctx, name, key.String()+"\n"); err != nil {
		return "", err
	}
	if _, err := b.readKey(ctx, name); err != nil {
		return "", err
	}
	return key.Recipient(), nil
}

// secrets returns the keys by which a job reads the objects of a workspace. They are those of one workspace alone.
func (b *Bucket) secrets(ctx context.Context, key string) ([]string, error) {
	if b.Keys == nil {
		return nil, nil
	}
	k := ParseKey(key)
	keys, err := b.workspaceKeys(ctx, k.Installation, workspace.ID(k.Workspace))
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = k.String()
	}
	return texts, err
}

// keyProblem is a *setting.Problem and encryption.ErrKey.
type keyProblem struct{ *setting.Problem }

func (p keyProblem) Unwrap() []error { return []error{p.Problem, encryption.ErrKey} }

// checkKeys checks that the keys of this installation's workspaces can be read with the key file, or records the file as
// theirs. Its error, if it is not the bucket's, is a *setting.Problem.
func (b *Bucket) checkKeys(ctx context.Context) error {
	e := b.encrypted
	e.checking.Lock()
	defer e.checking.Unlock()
	if e.checked {
		return nil
	}
	name := b.Installation + "/" + keysName
	if b.Keys == nil {
		switch _, err := e.Store.Stat(ctx, name); {
		case errors.Is(err, store.ErrNotFound):
			e.checked = true
			return nil
		case err != nil:
			return err
		}
		return keyProblem{&setting.Problem{Setting: keySetting, Why: "archives and backups of this installation are encrypted, and no file with their keys is named", Do: "name the file of before; without it they cannot be read"}}
	}
	_, err := b.readSecret(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound) && !b.Encrypt:
		return nil
	case errors.Is(err, store.ErrNotFound):
		if err := b.right(ctx); err != nil {
			return err
		}
		err = b.putSecret(ctx, name, b.recipients())
	case errors.Is(err, encryption.ErrKey):
		return keyProblem{&setting.Problem{Setting: keySetting, Why: "none of the secret keys in the file opens " + name + ", by which the archives and backups of this installation are encrypted", Do: "add the secret key of before to the file, in a line of its own; without it they cannot be read"}}
	}
	e.checked = err == nil
	return err
}

// recipients is the content of the object that shows which keys are used.
func (b *Bucket) recipients() string { return strings.Join(b.Keys.Recipients(), "\n") + "\n" }

// Rewrap encrypts the keys of all workspaces of this installation again if the recipients of the key file have changed,
// and returns how many. It need not succeed at once: until then the file has to have a secret key of before.
func (b *Bucket) Rewrap(ctx context.Context) (n int, err error) {
	if b.Keys == nil {
		return 0, nil
	}
	name := b.Installation + "/" + keysName
	content, err := b.readSecret(ctx, name)
	if errors.Is(err, store.ErrNotFound) || err == nil && string(content) == b.recipients() {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for o, err := range b.encrypted.Store.List(ctx, b.Installation+"/") {
		if err != nil {
			return n, err
		}
		if ParseKey(o.Key).Kind != WorkspaceKey {
			continue
		}
		key, err := b.readKey(ctx, o.Key)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err == nil {
			err = b.putSecret(ctx, o.Key, key.String()+"\n")
		}
		if err != nil {
			return n, err
		}
		n++
	}
	return n, b.putSecret(ctx, name, b.recipients())
}

// rewrapRetry is the time between two attempts of KeepKeys.
const rewrapRetry = time.Minute

// KeepKeys checks the keys of this installation and calls Rewrap until both have succeeded, and returns when ctx ends.
func (b *Bucket) KeepKeys(ctx context.Context) error {
	for {
		err := b.checkKeys(ctx)
		n := 0
		if err == nil {
			n, err = b.Rewrap(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		b.keys.Set(err)
		if n > 0 && err == nil {
			b.Log.Info("archive keys encrypted for the recipients of the key file", "workspaces", n, "recipients", b.Keys.Recipients())
		}
		var again <-chan time.Time // never
		if err != nil {
			again = time.After(rewrapRetry)
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// DeleteKeys removes the keys of a workspace of this installation that has no archive and no backup any more. What a
// bucket keeps of them, as in earlier versions of objects or in a copy, cannot be read without these keys.
func (b *Bucket) DeleteKeys(ctx context.Context, id workspace.ID) error {
	var keys []string
	for o, err := range b.encrypted.Store.List(ctx, b.Installation+"/"+string(id)+"/") {
		if err != nil {
			return err
		}
		if ParseKey(o.Key).Kind != WorkspaceKey {
			return nil
		}
		keys = append(keys, o.Key)
	}
	if len(keys) == 0 {
		return nil
	}
	b.forgetKeys(b.Installation, id)
	for _, key := range slices.Backward(keys) {
		if err := b.encrypted.Store.Delete(ctx, key); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
	}
	return nil
}
