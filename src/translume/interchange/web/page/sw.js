// Keeps the files of one version of this page, whose digest is the query of this script's address, for use offline.
const own = `translume ${registration.scope} `, cacheName = own + location.search.slice(1);

addEventListener('install', (event) => event.waitUntil((async () => {
  const about = await (await fetch('model.json', { cache: 'reload' })).json();
  await (await caches.open(cacheName)).addAll(about.files.map((name) => new Request(name, { cache: 'reload' })));
  await skipWaiting();
})()));

addEventListener('activate', (event) => event.waitUntil((async () => {
  for (const name of await caches.keys()) if (name.startsWith(own) && name !== cacheName) await caches.delete(name);
  await clients.claim();
})()));

// A request with a query asks the server, for newer versions.
addEventListener('fetch', (event) => {
  if (event.request.method !== 'GET' || new URL(event.request.url).search) return;
  event.respondWith((async () => (await (await caches.open(cacheName)).match(event.request)) ?? fetch(event.request))());
});
