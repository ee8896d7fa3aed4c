package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Inventory lists the installation's objects in the namespace. The namespace itself, its
// policies and the servers are those of the administrator, or of the chart.
func (r *Runtime) Inventory(ctx context.Context) (runtime.Inventory, error) {
	inv := runtime.Inventory{}
	pods, err := r.ownPods(ctx)
	if err != nil {
		return inv, err
	}
	for _, p := range pods {
		inv.Remove = append(inv.Remove, runtime.Item{Kind: kindPod, Name: p.Name, Detail: p.Labels[labelRole] + ", " + string(p.Status.Phase)})
	}
	records, err := r.ownRecords(ctx)
	if err != nil {
		return inv, err
	}
	for _, m := range records {
		inv.Remove = append(inv.Remove, runtime.Item{Kind: kindRecord, Name: m.Name, Detail: m.Labels[labelRole]})
	}
	homes, err := r.Volumes(ctx)
	if err != nil {
		return inv, err
	}
	for _, v := range homes {
		if !v.Foreign {
			inv.Homes = append(inv.Homes, runtime.Item{Kind: "home", Name: v.Workspace.VolumeName(), Detail: joined(v.Owner, v.Name)})
		}
	}
	asides, err := r.Asides(ctx)
	if err != nil {
		return inv, err
	}
	for _, a := range asides {
		inv.Keep = append(inv.Keep, runtime.Item{Kind: "set aside", Name: a.Name, Detail: a.Storage})
	}
	for _, list := range [][]runtime.Item{inv.Remove, inv.Homes, inv.Keep} {
		slices.SortStableFunc(list, func(a, b runtime.Item) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	}
	return inv, nil
}

// Kinds of items.
const (
	kindPod    = "Pod"
	kindRecord = "record"
)

// Uninstall removes what Inventory lists under Remove and, with homes, the homes, and calls
// gone for each removed item. It continues after errors and returns all of them; it may be
// repeated. No server of this installation may be running. What is known of a home is on its
// claim, so that a home which stays needs no Pod.
func (r *Runtime) Uninstall(ctx context.Context, homes bool, gone func(runtime.Item)) error {
	list, err := r.Volumes(ctx)
	if err != nil {
		return err
	}
	pods, err := r.ownPods(ctx)
	if err != nil {
		return err
	}
	var errs []error
	done := func(item runtime.Item, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s %s: %w", item.Kind, item.Name, err))
			return
		}
		gone(item)
	}
	for i := range pods {
		done(runtime.Item{Kind: kindPod, Name: pods[i].Name}, r.remove(ctx, &pods[i], 0))
	}
	for _, v := range list {
		if homes && !v.Foreign {
			done(runtime.Item{Kind: "home", Name: v.Workspace.VolumeName(), Detail: workspace.StorageKubernetes}, r.RemoveVolume(ctx, v.Workspace, v.Claim, nil))
		}
	}
	records, err := r.ownRecords(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, m := range records {
		err := r.configMaps().Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID}})
		if isNotFound(err) {
			err = nil
		}
		done(runtime.Item{Kind: kindRecord, Name: m.Name}, wrapError(ctx, "delete ConfigMap", err))
	}
	return errors.Join(errs...)
}

func (r *Runtime) ofInstallation() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labels.Set{labelInstallation: r.cfg.Installation}.String()}
}

func (r *Runtime) ownPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := r.pods().List(ctx, r.ofInstallation())
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	return list.Items, nil
}

func (r *Runtime) ownRecords(ctx context.Context) ([]corev1.ConfigMap, error) {
	list, err := r.configMaps().List(ctx, r.ofInstallation())
	if err != nil {
		return nil, wrapError(ctx, "list ConfigMaps", err)
	}
	return list.Items, nil
}
