package kube

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// idOf returns the ID of a container or job: the Pod's name and UID. The cluster finds Pods
// by name and never uses a UID again.
func idOf(p *corev1.Pod) string { return p.Name + "/" + string(p.UID) }

// identified returns the Pod with exactly this ID, or nil if there is none. One of another
// role or installation is an error.
func (r *Runtime) identified(ctx context.Context, id, role string) (*corev1.Pod, error) {
	name, uid, _ := strings.Cut(id, "/")
	p, err := r.pods().Get(ctx, name, metav1.GetOptions{})
	switch {
	case isNotFound(err) || err == nil && string(p.UID) != uid:
		return nil, nil
	case err != nil:
		return nil, wrapError(ctx, "read Pod "+name, err)
	case !r.owns(p.Labels, role):
		return nil, &foreignError{name: name, role: role}
	}
	return p, nil
}

func isNotFound(err error) bool { return apierrors.IsNotFound(err) }

// foreignError is the refusal to touch the Pod of another installation.
type foreignError struct{ name, role string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("pod %s is no %s of this installation", e.name, e.role)
}
