package httpapi

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	list := read[api.SizeList](t, e.want(200, "", "GET", "/sizes", "", as(e.ann)))
	want := []api.Size{{Name: "default", CPUs: 2, MemoryBytes: 4 << 30}, {Name: "small", CPUs: 0.5, MemoryBytes: 1 << 30}, {Name: "large", CPUs: 8}}
	if diff := cmp.Diff(want, list.Sizes); diff != "" {
		t.Error(diff)
	}

	e.want(400, "invalid_request", "POST", "/workspaces", `{"name":"huge","size":"huge"}`, as(e.ann))
	w := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"a","size":"small"}`, as(e.ann)))
	if w.Size != "small" || w.SizeWaits {
		t.Errorf("created: %q, waits %v", w.Size, w.SizeWaits)
	}
	if w := read[api.Workspace](t, e.want(201, "", "POST", "/workspaces", `{"name":"b"}`, as(e.ann))); w.Size != "default" {
		t.Errorf("without a size: %q", w.Size)
	}

	path := "/workspaces/" + w.ID
	e.Change(`UPDATE workspaces SET running_size = 'small', conditions = jsonb_set(conditions, '{infra.container_ready}', '{"status": "True", "reason": "Ready"}') WHERE name = 'a'`)
	e.want(400, "invalid_request", "PATCH", path, `{"size":"huge"}`, as(e.ann))
	e.want(403, "forbidden", "PATCH", path, `{"size":"large"}`, as(e.eve))
	w = read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"size":"large"}`, as(e.ann)))
	if w.Size != "large" || !w.SizeWaits {
		t.Errorf("changed: %q, waits %v", w.Size, w.SizeWaits)
	}
	w = read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"size":"default"}`, as(e.ann)))
	if w.Size != "default" || !w.SizeWaits {
		t.Errorf("reset: %q, waits %v", w.Size, w.SizeWaits)
	}

	// A size that is no longer offered stays until another one is chosen, also when the
	// workspace is changed otherwise.
	e.Change(`UPDATE workspaces SET size = 'gone' WHERE name = 'a'`)
	if w = read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"memo":"m","size":"gone"}`, as(e.ann))); w.Size != "gone" || w.Memo != "m" {
		t.Errorf("unchanged: %+v", w)
	}
}
