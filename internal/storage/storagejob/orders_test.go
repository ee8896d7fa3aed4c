package storagejob

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"codehub/internal/archive"
)

// Incomplete or missing instructions are distinguished from invalid ones, and none changes a
// file.
func TestInstructions(t *testing.T) {
	t.Parallel()
	good := string(encode(t, archiveSpec()))
	meta := testMeta()
	meta.Describe(archive.Stats{Entries: 1, Size: 5, SHA256: strings.Repeat("a", 64)})
	restore := string(encode(t, restoreSpec(&meta)))
	with := func(s, old, new string) string {
		if !strings.Contains(s, old) {
			t.Fatalf("%s is not in %s", old, s)
		}
		return strings.Replace(s, old, new, 1)
	}
	for name, c := range map[string]struct {
		in   string
		kind ErrorKind
	}{
		"nothing":               {"", NoOrders},
		"space":                 {" \n", NoOrders},
		"cut short":             {good[:len(good)-1], NoOrders},
		"cut in a word":         {good[:20], NoOrders},
		"no JSON":               {"archive /etc", Failed},
		"a list":                {"[]", Failed},
		"null":                  {"null", Failed},
		"empty":                 {"{}", Failed},
		"unknown field":         {with(good, `{`, `{"command":"rm",`), Failed},
		"unknown meta":          {with(good, `"meta":{`, `"meta":{"x":1,`), Failed},
		"two":                   {good + good, Failed},
		"more":                  {good + "x", Failed},
		"unknown kind":          {with(good, `"archive"`, `"delete"`), Failed},
		"no claim":              {with(good, `"claim":"`+testClaim, `"claim":"`), Failed},
		"another claim":         {with(good, `"archive_op_id":"`+testClaim, `"archive_op_id":"`+testWorkspace), Failed},
		"no workspace":          {with(good, testWorkspace, ``), Failed},
		"no upload":             {with(good, `"meta":{`, `"signed":{"meta":"http://x"},"meta":{`), Failed},
		"no URL for meta":       {with(good, `"meta":{`, `"signed":{"upload":{}},"meta":{`), Failed},
		"no download":           {with(restore, `"meta":{`, `"signed":{},"meta":{`), Failed},
		"negative share":        {with(restore, `"meta":{`, `"min_free":-0.1,"meta":{`), Failed},
		"all of the disk":       {with(good, `"meta":{`, `"min_free":1,"meta":{`), Failed},
		"no digest":             {with(restore, meta.SHA256, `..`), Failed},
		"negative size":         {with(restore, `"size":5`, `"size":-5`), Failed},
		"impossible figure":     {with(restore, `"size":5`, `"size":1e99`), Failed},
		"no generation":         {`{"kind":"backup","claim":"c"}`, Failed},
		"drill of archive":      {`{"kind":"drill","claim":"c"}`, Failed},
		"no manifest":           {`{"kind":"backup","claim":"c","generation":{"name":"x"}}`, Failed},
		"nameless":              {`{"kind":"backup","claim":"c","generation":{"name":""}}`, Failed},
		"folder in name":        {`{"kind":"backup","claim":"c","generation":{"name":"../x.manifest.zst"}}`, Failed},
		"no URL for backup":     {`{"kind":"backup","claim":"c","generation":{"name":"x.manifest.zst","signed":{}}}`, Failed},
		"no digest to drill":    {`{"kind":"drill","claim":"c","generation":{"name":"x.manifest.zst"}}`, Failed},
		"generation of archive": {`{"kind":"archive","claim":"c","generation":{"name":"x.manifest.zst"}}`, Failed},
		"binary":                {"\x00\xff\x80", Failed},
		"deeply nested":         {strings.Repeat(`{"meta":`, 100_000), Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, object := smallHome(t), t.TempDir()
			var out bytes.Buffer
			exit := Run(t.Context(), strings.NewReader(c.in), &out, Dirs{Home: home, Object: object})
			r := parseReport(t, exit, out.Bytes())
			if r.result == nil || r.result.Error == nil || r.result.Error.Kind != c.kind {
				t.Errorf("the job reported %.1000s", out.String())
			}
			if (exit == ExitNoOrders) != (c.kind == NoOrders) || exit == ExitOK {
				t.Errorf("exit code %d", exit)
			}
			if len(namesIn(t, home)) == 0 || len(namesIn(t, object)) > 0 {
				t.Error("a file was changed")
			}
		})
	}
}

// endless is JSON that never ends, within a value.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.n == 0 {
		e.n++
		return copy(p, `{"claim":"`), nil
	}
	for i := range p {
		p[i] = 'x'
	}
	e.n += int64(len(p))
	return len(p), nil
}

func TestEndlessInstructions(t *testing.T) {
	t.Parallel()
	e := &endless{}
	var out bytes.Buffer
	exit := Run(t.Context(), e, &out, Dirs{Home: t.TempDir()})
	if exit != ExitFailed || e.n > MaxOrders+1 || out.Len() > 1000 {
		t.Errorf("exit code %d after %d bytes: %.1000s", exit, e.n, out.String())
	}
}

// Docker may keep the standard input open, with all of the instructions or with none.
func TestInstructionsWithoutEOF(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		r, w := io.Pipe()
		defer w.Close()
		go w.Write(encode(t, archiveSpec()))
		if exit := Run(t.Context(), r, io.Discard, Dirs{Home: smallHome(t), Object: t.TempDir()}); exit != ExitOK {
			t.Errorf("exit code %d", exit)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r, w := io.Pipe()
			defer w.Close()
			if exit := Run(t.Context(), r, io.Discard, Dirs{}); exit != ExitNoOrders {
				t.Errorf("exit code %d", exit)
			}
		})
	})
}

func FuzzOrders(f *testing.F) {
	f.Add(encode(f, archiveSpec()))
	meta := testMeta()
	meta.Describe(archive.Stats{Entries: 1, Size: 5, SHA256: strings.Repeat("a", 64)})
	f.Add(encode(f, restoreSpec(&meta)))
	f.Fuzz(func(t *testing.T, in []byte) {
		spec, err := decodeOrders(bytes.NewReader(in))
		if err != nil {
			return
		}
		if spec.validate() != nil {
			return
		}
		if spec.Claim == "" || spec.Kind != "archive" && spec.Kind != "restore" {
			t.Errorf("%+v is valid", spec)
		}
	})
}
