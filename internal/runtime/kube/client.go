package kube

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// client sends requests about the kinds of objects that codehub uses. The clientset of all
// kinds would make the executable, which is in every workspace, half as large again.
type client struct {
	rest       rest.Interface
	networking rest.Interface // the group with NetworkPolicies
	params     k8sruntime.ParameterCodec
}

func newClient(config *rest.Config) (*client, error) {
	scheme := k8sruntime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	group := func(path string, version schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(config)
		c.APIPath, c.GroupVersion = path, &version
		c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
		return rest.RESTClientFor(c)
	}
	core, err := group("/api", corev1.SchemeGroupVersion)
	networking, failed := group("/apis", networkingv1.SchemeGroupVersion)
	if err := errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &client{rest: core, networking: networking, params: k8sruntime.NewParameterCodec(scheme)}, nil
}

func (r *Runtime) pods() *gentype.ClientWithList[*corev1.Pod, *corev1.PodList] {
	return gentype.NewClientWithList("pods", r.api.rest, r.api.params, r.cfg.Namespace,
		func() *corev1.Pod { return &corev1.Pod{} }, func() *corev1.PodList { return &corev1.PodList{} }, gentype.PrefersProtobuf[*corev1.Pod]())
}

func (r *Runtime) claims() *gentype.ClientWithList[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList] {
	return gentype.NewClientWithList("persistentvolumeclaims", r.api.rest, r.api.params, r.cfg.Namespace,
		func() *corev1.PersistentVolumeClaim { return &corev1.PersistentVolumeClaim{} },
		func() *corev1.PersistentVolumeClaimList { return &corev1.PersistentVolumeClaimList{} }, gentype.PrefersProtobuf[*corev1.PersistentVolumeClaim]())
}

func (r *Runtime) configMaps() *gentype.ClientWithList[*corev1.ConfigMap, *corev1.ConfigMapList] {
	return gentype.NewClientWithList("configmaps", r.api.rest, r.api.params, r.cfg.Namespace,
		func() *corev1.ConfigMap { return &corev1.ConfigMap{} }, func() *corev1.ConfigMapList { return &corev1.ConfigMapList{} }, gentype.PrefersProtobuf[*corev1.ConfigMap]())
}

func (r *Runtime) events() *gentype.ClientWithList[*corev1.Event, *corev1.EventList] {
	return gentype.NewClientWithList("events", r.api.rest, r.api.params, r.cfg.Namespace,
		func() *corev1.Event { return &corev1.Event{} }, func() *corev1.EventList { return &corev1.EventList{} }, gentype.PrefersProtobuf[*corev1.Event]())
}

func (r *Runtime) networkPolicies() *gentype.ClientWithList[*networkingv1.NetworkPolicy, *networkingv1.NetworkPolicyList] {
	return gentype.NewClientWithList("networkpolicies", r.api.networking, r.api.params, r.cfg.Namespace,
		func() *networkingv1.NetworkPolicy { return &networkingv1.NetworkPolicy{} },
		func() *networkingv1.NetworkPolicyList { return &networkingv1.NetworkPolicyList{} }, gentype.PrefersProtobuf[*networkingv1.NetworkPolicy]())
}

func (r *Runtime) secrets() *gentype.Client[*corev1.Secret] {
	return gentype.NewClient("secrets", r.api.rest, r.api.params, r.cfg.Namespace, func() *corev1.Secret { return &corev1.Secret{} }, gentype.PrefersProtobuf[*corev1.Secret]())
}

// readLog opens the log of a Pod's container.
func (r *Runtime) readLog(ctx context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
	return r.api.rest.Get().Namespace(r.cfg.Namespace).Resource("pods").Name(pod).SubResource("log").VersionedParams(options, r.api.params).Stream(ctx)
}
