package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"codehub/internal/workspace"
)

// stubAPI is an API server with the objects of one namespace, without controllers and nodes. An
// object that has finalizers stays after its deletion until the test finishes that.
type stubAPI struct {
	t *testing.T

	mu      sync.Mutex
	version int
	objects map[string]map[string]any // by KIND/NAME
	log     string                    // of each Pod
	deleted []string                  // KIND/NAME of each deletion
	// opened is called, with mu held, for a Pod whose gate was removed; it returns its status.
	opened func(name string) any
	// expired makes a watch of one object end at once, as one from a version that is too old for a
	// server that was restarted. expirations counts them.
	expired     bool
	expirations int
}

// newStub returns a runtime of a new installation on a stub.
func newStub(t *testing.T) (*stubAPI, *Runtime) {
	t.Helper()
	api := &stubAPI{t: t, objects: map[string]map[string]any{}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	r, err := New(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Config{
		Installation: uuid.NewString(), Settings: Settings{Namespace: namespace, ServerImage: "codehub/server:1"},
	})
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return api, r
}

// put stores an object, as its kind, and returns its UID.
func (a *stubAPI) put(kind string, o metav1.Object) string {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.add(kind, o)["metadata"].(map[string]any)["uid"].(string)
}

func (a *stubAPI) add(kind string, from any) map[string]any {
	text, err := json.Marshal(from)
	var o map[string]any
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		a.t.Error(err)
	}
	about := o["metadata"].(map[string]any)
	if about["uid"] == nil {
		about["uid"] = uuid.NewString()
	}
	about["namespace"] = namespace
	about["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	a.touch(o)
	a.objects[kind+"/"+about["name"].(string)] = o
	return o
}

func (a *stubAPI) touch(o map[string]any) {
	a.version++
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
}

// finish removes an object whose finalizers have done their work.
func (a *stubAPI) finish(kind, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.objects, kind+"/"+name)
}

// claim returns a claim, or nil.
func (a *stubAPI) claim(name string) *corev1.PersistentVolumeClaim {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects["persistentvolumeclaims/"+name]
	if o == nil {
		return nil
	}
	c := &corev1.PersistentVolumeClaim{}
	text, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// home stores the claim of a live home with the protection of the cluster, as change leaves it.
func (a *stubAPI) home(r *Runtime, change func(*corev1.PersistentVolumeClaim)) (workspace.ID, *corev1.PersistentVolumeClaim) {
	a.t.Helper()
	id := workspace.ID(uuid.NewString())
	c := r.newClaim(id.VolumeName(), r.labels(roleHome, id, "home-1"))
	c.Finalizers = []string{"kubernetes.io/pvc-protection"}
	c.Annotations = map[string]string{noteSettled: "true", noteSeeded: "true"}
	if change != nil {
		change(c)
	}
	a.put("persistentvolumeclaims", c)
	return id, a.claim(c.Name)
}

// ServeHTTP implements http.Handler.
func (a *stubAPI) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // api/v1/namespaces/{namespace}/{kind}/{name}/{part}
	if len(parts) < 5 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	kind := parts[4]
	body, err := io.ReadAll(req.Body)
	if err != nil {
		a.t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(parts) == 7 && parts[6] == "log":
		_, _ = io.WriteString(w, a.log)
	case len(parts) == 5 && req.Method == http.MethodPost:
		var o map[string]any
		if err := json.Unmarshal(body, &o); err != nil {
			a.t.Error(err)
		}
		if name := o["metadata"].(map[string]any)["name"].(string); a.objects[kind+"/"+name] != nil {
			a.refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
			return
		}
		a.answer(w, a.add(kind, o))
	case len(parts) == 5 && req.Method == http.MethodGet:
		a.list(w, req, kind)
	case len(parts) == 6:
		a.one(w, req, kind, parts[5], body)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (a *stubAPI) list(w http.ResponseWriter, req *http.Request, kind string) {
	query := req.URL.Query()
	if a.expired && query.Get("watch") != "" && query.Get("fieldSelector") != "" {
		a.expirations++
		status := map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "message": "too old resource version", "code": http.StatusGone}
		a.answer(w, map[string]any{"type": "ERROR", "object": status})
		return
	}
	if query.Get("watch") != "" { // such a watch cannot be opened
		w.WriteHeader(http.StatusForbidden)
		return
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		a.t.Error(err)
	}
	items := []any{}
	for key, o := range a.objects {
		about, _ := json.Marshal(o["metadata"])
		var meta metav1.ObjectMeta
		if err := json.Unmarshal(about, &meta); err != nil {
			a.t.Error(err)
		}
		if strings.HasPrefix(key, kind+"/") && selector.Matches(labels.Set(meta.Labels)) {
			items = append(items, o)
		}
	}
	names := map[string]string{"pods": "PodList", "persistentvolumeclaims": "PersistentVolumeClaimList", "configmaps": "ConfigMapList", "events": "EventList"}
	a.answer(w, map[string]any{"apiVersion": "v1", "kind": names[kind], "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items})
}

func (a *stubAPI) one(w http.ResponseWriter, req *http.Request, kind, name string, body []byte) {
	o := a.objects[kind+"/"+name]
	if o == nil {
		a.refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	about := o["metadata"].(map[string]any)
	var given map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &given); err != nil {
			a.t.Error(err)
		}
	}
	only, _ := given["preconditions"].(map[string]any)
	if req.Method == http.MethodPatch {
		only, _ = given["metadata"].(map[string]any)
	}
	for _, key := range []string{"uid", "resourceVersion"} {
		if only[key] != nil && only[key] != about[key] {
			a.refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
	}
	switch req.Method {
	case http.MethodPatch:
		merge(o, given)
		a.touch(o)
		if kind == "pods" && a.opened != nil {
			o["status"] = a.opened(name)
		}
	case http.MethodDelete:
		a.deleted = append(a.deleted, kind+"/"+name)
		if about["finalizers"] == nil {
			delete(a.objects, kind+"/"+name)
		} else if about["deletionTimestamp"] == nil {
			about["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
			a.touch(o)
		}
	}
	a.answer(w, o)
}

// merge applies a JSON merge patch.
func merge(to, patch map[string]any) {
	for key, value := range patch {
		part, isMap := value.(map[string]any)
		there, hasMap := to[key].(map[string]any)
		switch {
		case value == nil:
			delete(to, key)
		case isMap && hasMap:
			merge(there, part)
		case isMap:
			fresh := map[string]any{}
			merge(fresh, part)
			to[key] = fresh
		default:
			to[key] = value
		}
	}
}

func (a *stubAPI) answer(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(o); err != nil {
		a.t.Log(err)
	}
}

func (a *stubAPI) refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":%q,"code":%d}`, reason, code)
}
