package kube

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// A mark is a ConfigMap without content. Each has a name of its own, so that storing one
// overwrites no other.

func markName(id string) string { return "codehub-mark-" + id }

// Mark implements runtime.Runtime.
func (r *Runtime) Mark(ctx context.Context) (workspace.Mark, bool, error) {
	found, err := r.recordView.list(ctx)
	if err != nil {
		return workspace.Mark{}, false, wrapError(ctx, "list ConfigMaps", err)
	}
	list := r.marks(found)
	var newest workspace.Mark
	for _, m := range list {
		if newest.ID == "" || newer(m, newest) {
			newest = m
		}
	}
	return newest, newest.ID != "", nil
}

// newer orders marks by serial, then by ID.
func newer(a, b workspace.Mark) bool {
	return a.Serial > b.Serial || a.Serial == b.Serial && a.ID > b.ID
}

// marks returns the marks among ConfigMaps.
func (r *Runtime) marks(among []*corev1.ConfigMap) []workspace.Mark {
	var list []workspace.Mark
	for _, c := range among {
		if !r.owns(c.Labels, roleMark) {
			continue
		}
		serial, err := strconv.ParseInt(c.Annotations[noteSerial], 10, 64)
		at, badTime := time.Parse(time.RFC3339Nano, c.Annotations[noteAt])
		if err != nil || badTime != nil || c.Annotations[noteMark] == "" {
			continue // changed by hand
		}
		list = append(list, workspace.Mark{ID: c.Annotations[noteMark], Serial: serial, Identity: c.Annotations[noteIdentity], At: at})
	}
	return list
}

// SetMark implements runtime.Runtime.
func (r *Runtime) SetMark(ctx context.Context, m workspace.Mark) error {
	maps := r.configMaps()
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: markName(m.ID), Labels: r.labels(roleMark, "", ""),
		Annotations: map[string]string{
			noteMark: m.ID, noteSerial: strconv.FormatInt(m.Serial, 10), noteIdentity: m.Identity, noteAt: m.At.UTC().Format(time.RFC3339Nano),
		},
	}}, metav1.CreateOptions{})
	switch {
	case err == nil:
		r.recordView.wrote(made)
	case apierrors.IsAlreadyExists(err):
		r.recordView.refresh() // by another server
	default:
		return wrapError(ctx, "create ConfigMap", err)
	}
	records, err := r.recordView.list(ctx)
	if err != nil {
		return wrapError(ctx, "list ConfigMaps", err)
	}
	list := r.marks(records)
	found := false
	for _, o := range list {
		found = found || o.ID == m.ID
	}
	if !found { // its name is another's
		return fmt.Errorf("ConfigMap %s: %w", markName(m.ID), runtime.ErrConflict)
	}
	for _, o := range list {
		if o.Serial >= m.Serial {
			continue
		}
		if err := maps.Delete(ctx, markName(o.ID), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return wrapError(ctx, "delete ConfigMap", err)
		}
	}
	return nil
}
