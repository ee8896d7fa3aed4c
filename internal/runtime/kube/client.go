package kube

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// client sends requests about the kinds of objects that codehub uses. The clientset of all
// kinds would make the executable, which is in every workspace, half as large again.
type client struct {
	rest   rest.Interface
	params k8sruntime.ParameterCodec
}

func newClient(config *rest.Config) (*client, error) {
	scheme := k8sruntime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	r, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &client{rest: r, params: k8sruntime.NewParameterCodec(scheme)}, nil
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

func (r *Runtime) secrets() *gentype.Client[*corev1.Secret] {
	return gentype.NewClient("secrets", r.api.rest, r.api.params, r.cfg.Namespace, func() *corev1.Secret { return &corev1.Secret{} }, gentype.PrefersProtobuf[*corev1.Secret]())
}

// readLog opens the log of a Pod's container.
func (r *Runtime) readLog(ctx context.Context, pod string, options *corev1.PodLogOptions) (io.ReadCloser, error) {
	return r.api.rest.Get().Namespace(r.cfg.Namespace).Resource("pods").Name(pod).SubResource("log").VersionedParams(options, r.api.params).Stream(ctx)
}
